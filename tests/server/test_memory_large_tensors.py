"""Tensors of 300 MB with a /dev/shm of 64 MB, as in containers: over gRPC, and over HTTP with a
higher limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from tests.server.harness import Server, launch_naiad

pytestmark = pytest.mark.slow

NUM_VALUES = 75_000_000
SMALL_SHM = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"',
)


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    if subprocess.run([*SMALL_SHM, "true"], capture_output=True).returncode:
        pytest.skip("no permission to mount a /dev/shm of 64 MB")
    flags = [
        f"--http-max-input-size={1 << 30}",
        "--model-control-mode=explicit",
        "--load-model=identity_fp32",
    ]
    one = launch_naiad([str(repositories / "main")], flags, prefix=SMALL_SHM)
    try:
        yield one.wait_started()
    finally:
        one.stop()


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
def test_tensors_of_300_megabytes(server: Server, module: ModuleType) -> None:
    statistics = os.statvfs(f"/proc/{server.pid}/root/dev/shm")
    assert statistics.f_blocks * statistics.f_frsize <= 64 << 20
    array = np.arange(NUM_VALUES, dtype=np.float32)
    tensor = module.InferInput("INPUT0", [array.size], "FP32")
    tensor.set_data_from_numpy(array)
    options = {"network_timeout": 300.0} if module is http_client else {}
    with module.InferenceServerClient(
        server.http if module is http_client else server.grpc, **options
    ) as client:
        assert np.array_equal(client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0"), array)
