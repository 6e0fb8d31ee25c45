"""The sdist, and the wheel that is built from it, installed into an empty environment, and served
from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.server.harness import Server, free_ports

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 20 << 20
LICENCES = ("LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the tool that pyproject.toml names, as a release builds it."""
    folder = tmp_path_factory.mktemp("sdist")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", folder / "tool", *requires], check=True)
    code = f"from hatchling.build import build_sdist; build_sdist({str(folder)!r})"
    environment = {**os.environ, "PYTHONPATH": str(folder / "tool")}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    (path,) = folder.glob("naiad-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Built from the sdist, as an index's installer without a wheel does."""
    folder = sdist.parent / "wheel"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sdist], check=True
    )
    (path,) = folder.glob("naiad-*.whl")
    return path


def test_the_sdist_has_the_sources_and_the_licences(sdist: Path) -> None:
    assert sdist.stat().st_size < MAX_WHEEL_BYTES
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", *LICENCES, "proto/grpc_service.proto"} <= names
    tracked = subprocess.run(
        ["git", "ls-files", "naiad"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode == 0:  # The checkout may be a copy without its history.
        assert set(tracked.stdout.split()) <= names
    assert not {name.partition("/")[0] for name in names} & {"build", "dist", ".venv", ".git"}


def test_the_wheel_has_the_licences_and_says_which(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        folder = metadata.removesuffix("METADATA")
        for name in LICENCES:
            assert archive.read(f"{folder}licenses/{name}") == (ROOT / name).read_bytes()
        lines = archive.read(metadata).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert {f"License-File: {name}" for name in LICENCES} <= set(lines)


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


@pytest.mark.slow
def test_the_light_extras_install_together(wheel: Path, tmp_path: Path) -> None:
    """Those with PyTorch, Ray and OpenVINO are installed by `make release-test`."""
    extras = "onnx,cloud,hub,analyze,jwt,otel,kv-events,gpu"
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", f"{wheel}[{extras}]"], check=True)
    subprocess.run([*pip, "check"], check=True)
    modules = "onnxruntime, obstore, huggingface_hub, optuna, jwt, opentelemetry.sdk, zmq, pynvml"
    subprocess.run([python, "-P", "-c", f"import {modules}"], check=True, cwd=tmp_path)
