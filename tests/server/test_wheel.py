"""The wheel: built from the source tree, installed into an empty environment, and served from
there."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.server.harness import Server, free_ports

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 20 << 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True
    )
    (path,) = folder.glob("naiad-*.whl")
    return path


def test_the_wheel_is_small_and_contains_only_the_package(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = {name.split("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"naiad"}
    static = {path.name for path in (ROOT / "naiad" / "console" / "static").iterdir()}
    assert {f"naiad/console/static/{name}" for name in static} <= names


def test_serves_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel],
        check=True,
    )
    version = subprocess.run(
        [binaries / "naiad", "--version"], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert "0." in version
    ports = free_ports()
    http, grpc, metrics = ports
    # A KServe runtime starts Triton with these options.
    command = [
        str(binaries / "tritonserver"),
        f"--model-store={ROOT / 'examples' / 'repository'}",
        "--model-control-mode=explicit",
        "--load-model=add_sub",
        f"--grpc-port={grpc}",
        f"--http-port={http}",
        f"--metrics-port={metrics}",
        "--allow-grpc=true",
        "--allow-http=true",
    ]
    server = Server(command, ports, cwd=tmp_path)
    try:
        server.wait_started()
        tensors = [
            {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
            for name in ("INPUT0", "INPUT1")
        ]
        status, body = server.post("/v2/models/add_sub/infer", {"inputs": tensors})
        assert (status, b"[2.0,4.0,6.0,8.0]" in body) == (200, True), body
        assert server.stop() == 0
    finally:
        server.stop()
