"""Runs the client tests with tritonclient 2.50.0, in an environment that is kept in the user's
cache."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.server.harness import Endpoints

WHEELS = ("tritonclient[http,grpc]==2.50.0", "pytest>=9", "pytest-asyncio>=1.4")
SUITE = (
    "test_tritonclient_sync.py",
    "test_tritonclient_aio.py",
    "test_tritonclient_stream.py",
    "test_tritonclient_control.py",
)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def old_python() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "naiad" / f"tritonclient-2.50.0-py{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *WHEELS],
            capture_output=True,
            text=True,
        )
        if installed.returncode:
            pytest.skip(f"tritonclient 2.50.0 cannot be installed here: {installed.stderr[-300:]}")
        (folder / "ready").touch()
    return str(python)


def test_the_client_tests_pass_with_an_old_client(
    old_python: str, main_server: Endpoints, control_server: Endpoints
) -> None:
    def ports(server: Endpoints) -> str:
        return f"{server.http_port},{server.grpc_port},{server.metrics_port}"

    environment = {
        **os.environ,
        "NAIAD_TEST_MAIN": ports(main_server),
        "NAIAD_TEST_CONTROL": ports(control_server),
    }
    command = [
        old_python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        f"--confcutdir={HERE}",
        *(str(HERE / name) for name in SUITE),
    ]
    result = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
