"""A server or worker without free descriptors rejects large tensors, which need shared memory.
Everything else is served, and large tensors are served again later."""

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

from tests.server.harness import Server, launch_naiad, naiad, process_name, process_tree

LARGE, SMALL = np.arange(500_000, dtype=np.float32), np.arange(5, dtype=np.float32)


@pytest.fixture
def server(repositories: Path) -> Iterator[Server]:
    one = launch_naiad(
        [str(repositories / "main")],
        ["--model-control-mode=explicit", "--load-model=identity_fp32"],
    )
    try:
        yield one.wait_started()
    finally:
        one.stop()


MAKER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0])
            output = pb_utils.Tensor("OUTPUT", np.full(size, 7, np.float32))
            if size % 2:
                request.get_response_sender().send(
                    pb_utils.InferenceResponse([output]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
                responses.append(None)
            else:
                responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
MAKER_CONFIG = """
backend: "python"
input [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.mark.parametrize("size", [500_000, 500_001], ids=["returned", "by a sender"])
def test_a_worker_survives_without_free_descriptors(tmp_path: Path, size: int) -> None:
    (tmp_path / "maker" / "1").mkdir(parents=True)
    (tmp_path / "maker" / "config.pbtxt").write_text(MAKER_CONFIG)
    (tmp_path / "maker" / "1" / "model.py").write_text(MAKER)
    with naiad([str(tmp_path)]) as server, grpc_client.InferenceServerClient(server.grpc) as client:

        def make(size: int) -> int:
            tensor = grpc_client.InferInput("SIZE", [1], "INT32")
            tensor.set_data_from_numpy(np.array([size], np.int32))
            return int(client.infer("maker", [tensor]).as_numpy("OUTPUT").sum())

        assert make(6) == 42
        (worker,) = (pid for pid in process_tree(server.pid) if "maker" in process_name(pid))
        limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, limits[1]))
        for _ in range(3):
            with pytest.raises(
                InferenceServerException,
                match=r"no shared memory is left for large tensors: .*Too many open files",
            ):
                make(size)
            assert make(6) == 42
        resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        assert make(size) == 7 * size
        assert worker in process_tree(server.pid)


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
def test_rejects_large_tensors_until_descriptors_are_free(
    server: Server, module: ModuleType
) -> None:
    def infer(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bool:
        tensor = module.InferInput("INPUT0", [array.size], "FP32")
        tensor.set_data_from_numpy(array)
        return np.array_equal(client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0"), array)

    with module.InferenceServerClient(
        server.http if module is http_client else server.grpc
    ) as client:
        assert infer(SMALL)  # The connection must be open before the limit is lowered.
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        for _ in range(3):
            with pytest.raises(
                InferenceServerException,
                match=r"no shared memory is left for large tensors: .*Too many open files",
            ):
                infer(LARGE)
            assert infer(SMALL)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert infer(LARGE)
