"""GPU memory of clients, end to end: a real driver, a real server, and memory that this process
exports with cupy."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad, process_tree

cupy = pytest.importorskip("cupy", reason="needs cupy to export GPU memory")


class DeviceMemory:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = cupy.cuda.runtime.malloc(num_bytes)
        self.handle = bytes(cupy.cuda.runtime.ipcGetMemHandle(self.address))

    def write(self, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        cupy.cuda.runtime.memcpy(self.address + offset, array.ctypes.data, array.nbytes, 1)

    def read(self, count: int, offset: int = 0) -> np.ndarray[Any, Any]:
        array = np.empty(count, np.float32)
        cupy.cuda.runtime.memcpy(array.ctypes.data, self.address + offset, array.nbytes, 2)
        return array

    def free(self) -> None:
        if self.address:
            cupy.cuda.runtime.free(self.address)
            self.address = 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU here")
    folder = tmp_path_factory.mktemp("repository")
    (folder / "identity_fp32").symlink_to(
        Path(__file__).parents[1] / "repositories" / "main" / "identity_fp32"
    )
    with naiad([str(folder)], ["--allow-client-shm=true"]) as one:
        yield one


@pytest.fixture
def memory(server: Server) -> Iterator[DeviceMemory]:
    made = DeviceMemory(64 << 20)
    yield made
    server.post("/v2/cudasharedmemory/unregister", b"")
    made.free()


def register(
    server: Server,
    memory: DeviceMemory,
    byte_size: int = 0,
    handle: bytes = b"",
    device_id: int = 0,
) -> tuple[int, str]:
    raw = base64.b64encode(handle or memory.handle).decode()
    body = {
        "raw_handle": {"b64": raw},
        "device_id": device_id,
        "byte_size": byte_size or memory.num_bytes,
    }
    status, data = server.post("/v2/cudasharedmemory/region/gpu/register", body)
    return status, json.loads(data)["error"] if data else ""


def infer(server: Server, count: int, in_offset: int, out_offset: int) -> tuple[int, Any]:
    def place(offset: int) -> dict[str, Any]:
        return {
            "shared_memory_region": "gpu",
            "shared_memory_byte_size": 4 * count,
            "shared_memory_offset": offset,
        }

    body = {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [count], "parameters": place(in_offset)}
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": place(out_offset)}],
    }
    status, data = server.post("/v2/models/identity_fp32/infer", body)
    return status, json.loads(data)


def helpers(server: Server) -> list[int]:
    return [
        pid
        for pid in process_tree(server.pid)
        if "naiad.shm.cuda_process" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


@pytest.mark.parametrize("count", [1, 1000, 1 << 20, 7 << 20])
def test_inputs_and_outputs(server: Server, memory: DeviceMemory, count: int) -> None:
    assert register(server, memory) == (200, "")
    data = np.random.default_rng(3).random(count, np.float32)
    memory.write(data, 4)
    status, response = infer(server, count, 4, 32 << 20)
    assert status == 200, response
    assert response["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [count]}]
    assert np.array_equal(memory.read(count, 32 << 20), data)


def test_status(server: Server, memory: DeviceMemory) -> None:
    register(server, memory, 1000)
    assert json.loads(server.get("/v2/cudasharedmemory/status")[1]) == [
        {"name": "gpu", "device_id": 0, "byte_size": 1000}
    ]
    assert register(server, memory)[1] == "shared memory region 'gpu' already in manager"


def test_rejects_slices_outside_of_the_region(server: Server, memory: DeviceMemory) -> None:
    assert (
        register(server, memory, memory.num_bytes * 4)[1]
        == "failed to register shared memory region 'gpu': invalid args"
    )
    register(server, memory, 1000)
    assert (
        infer(server, 100, 900, 0)[1]["error"]
        == "Invalid offset + byte size for shared memory region: 'gpu'"
    )


def test_rejects_handles_of_no_memory(server: Server, memory: DeviceMemory) -> None:
    for handle in (bytes(64), bytes(range(64)), memory.handle[::-1]):
        assert register(server, memory, handle=handle) == (
            400,
            "failed to register shared memory region: invalid args",
        )
    assert register(server, memory, device_id=77) == (
        400,
        "failed to register shared memory region: invalid args",
    )
    assert server.is_ready()


def test_survives_memory_that_the_client_has_freed(server: Server, memory: DeviceMemory) -> None:
    """The result depends on the driver. The server must survive, and the next registration must
    work."""
    register(server, memory)
    memory.free()
    assert infer(server, 1000, 0, 4096)[0] in (200, 500)
    assert server.is_ready()
    server.post("/v2/cudasharedmemory/unregister", b"")
    other = DeviceMemory(4096)
    assert register(server, other) == (200, "")
    other.write(np.ones(10, np.float32))
    assert infer(server, 10, 0, 2048)[0] == 200
    assert np.array_equal(other.read(10, 2048), np.ones(10, np.float32))
    server.post("/v2/cudasharedmemory/unregister", b"")
    other.free()


def test_releases_the_gpu_with_the_last_region(server: Server, memory: DeviceMemory) -> None:
    register(server, memory)
    assert len(helpers(server)) == 1
    server.post("/v2/cudasharedmemory/region/gpu/unregister", b"")
    eventually(lambda: helpers(server) == [], "the process that held the memory is gone")


def test_a_killed_helper_process_loses_only_its_regions(
    server: Server, memory: DeviceMemory
) -> None:
    register(server, memory)
    os.kill(helpers(server)[0], signal.SIGKILL)
    status, response = infer(server, 10, 0, 4096)
    assert (status, response["error"]) == (
        500,
        "the GPU memory of shared memory region 'gpu' was lost; register it again",
    )
    server.post("/v2/cudasharedmemory/unregister", b"")
    eventually(lambda: register(server, memory)[0] == 200, "it can be registered again")
    assert infer(server, 10, 0, 4096)[0] == 200
