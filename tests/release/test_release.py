"""A release on each Python that can be had: the wheel with all extras in an environment of its own,
and a server from there, outside of the checkout. `make release-test` runs it; it installs some
gigabytes. NAIAD_PYTHONS names interpreters that are not in the PATH, separated by colons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.harness import Server, free_ports, port_flags

ROOT = Path(__file__).parents[2]
NAMES = [f"python3.{minor}" for minor in range(11, 15)]
PYTHONS = [
    *filter(None, os.environ.get("NAIAD_PYTHONS", "").split(":")),
    *filter(None, map(shutil.which, NAMES)),
]
EXTRAS = os.environ.get("EXTRAS", "all")
LIMIT_S = 300.0


def version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


BY_VERSION = {found: python for python in reversed(PYTHONS) if (found := version(python))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    (path,) = folder.glob("naiad-*.whl")
    return path


@pytest.mark.parametrize("number", [f"3.{minor}" for minor in range(11, 15)])
def test_installs_and_serves(wheel: Path, tmp_path: Path, number: str) -> None:
    if number not in BY_VERSION:
        pytest.skip(f"there is no Python {number} on this machine")
    subprocess.run([BY_VERSION[number], "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    pip = [str(binaries / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", f"{wheel}[{EXTRAS}]"], check=True)
    subprocess.run([*pip, "check"], check=True)
    shutil.copytree(ROOT / "examples" / "repository", tmp_path / "models")
    ports = free_ports()
    command = [str(binaries / "naiad"), "serve", "--model-repository=models", *port_flags(ports)]
    environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    server = Server(command, ports, {**environment, "HOME": str(tmp_path)}, cwd=tmp_path)
    try:
        server.wait_started(LIMIT_S)
        values = {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        inputs = [{"name": name, **values} for name in ("INPUT0", "INPUT1")]
        status, body = server.post("/v2/models/add_sub/infer", {"inputs": inputs})
        assert (status, b"[2.0,4.0,6.0,8.0]" in body) == (200, True), body
        seven = (ROOT / "examples" / "digits" / "seven.json").read_bytes()
        status, body = server.post("/v2/models/digits/infer", seven)
        assert status == 200, body
        assert server.stop() == 0
    finally:
        server.stop()
