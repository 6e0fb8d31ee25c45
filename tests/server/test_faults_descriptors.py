"""A server without a descriptor left: large tensors, which need shared memory, are refused; all else goes on, and so do they afterwards."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.harness import Server, launch_naiad

LARGE, SMALL = np.arange(500_000, dtype=np.float32), np.arange(5, dtype=np.float32)


@pytest.fixture
def server(repositories: Path) -> Iterator[Server]:
    one = launch_naiad([str(repositories / "main")], ["--model-control-mode=explicit", "--load-model=identity_fp32"])
    try:
        yield one.wait_started()
    finally:
        one.stop()


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
def test_large_tensors_wait_for_better_times(server: Server, module: ModuleType) -> None:
    def infer(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bool:
        tensor = module.InferInput("INPUT0", [array.size], "FP32")
        tensor.set_data_from_numpy(array)
        return np.array_equal(client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0"), array)

    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
        assert infer(SMALL)  # the connection is there
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        for _ in range(3):
            with pytest.raises(InferenceServerException, match=r"no shared memory for large tensors can be had: .*Too many open files"):
                infer(LARGE)
            assert infer(SMALL)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert infer(LARGE)
