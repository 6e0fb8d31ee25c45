"""Tensors in clients' shared memory, with the tools of tritonclient and both protocols; and
malicious clients."""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, serialize_byte_tensor
from tritonclient.utils import shared_memory as shm

from bench import oracle
from tests.server.gates import Gate, HttpCall, eventually
from tests.server.harness import Endpoints, Server, naiad

CLIENTS = [http_client, grpc_client]
DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    with naiad(
        [str(repositories / "main"), str(repositories / "gates")], ["--allow-client-shm=true"]
    ) as one:
        yield one


def connect(module: ModuleType, server: Endpoints) -> Any:
    return module.InferenceServerClient(server.http if module is http_client else server.grpc)


@pytest.fixture(params=CLIENTS, ids=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    client: ModuleType = request.param
    return client


@pytest.fixture
def client(module: ModuleType, server: Server) -> Iterator[Any]:
    with connect(module, server) as one:
        yield one
        one.unregister_system_shared_memory()


class Memory:
    """Creates regions like tritonclient.utils.shared_memory, and removes them after the test."""

    def __init__(self, num_bytes: int) -> None:
        self.name = f"region{next(_numbers)}"
        self.key = f"/naiad-test-{os.getpid()}-{self.name}"
        self.num_bytes = num_bytes
        self.handle = shm.create_shared_memory_region(self.name, self.key, num_bytes)

    @property
    def path(self) -> str:
        return f"/dev/shm{self.key}"

    def register(self, client: Any) -> None:
        client.register_system_shared_memory(self.name, self.key, self.num_bytes)


@pytest.fixture
def make_memory() -> Iterator[Any]:
    made: list[Memory] = []

    def make(num_bytes: int) -> Memory:
        made.append(Memory(num_bytes))
        return made[-1]

    yield make
    for memory in made:
        shm.destroy_shared_memory_region(memory.handle)


def shared_input(
    module: ModuleType,
    name: str,
    shape: list[int],
    datatype: str,
    memory: Memory,
    num_bytes: int,
    offset: int = 0,
) -> Any:
    tensor = module.InferInput(name, shape, datatype)
    tensor.set_shared_memory(memory.name, num_bytes, offset)
    return tensor


def shared_output(
    module: ModuleType, name: str, memory: Memory, num_bytes: int, offset: int = 0
) -> Any:
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(memory.name, num_bytes, offset)
    return output


def add_sub(
    module: ModuleType, client: Any, source: Memory, target: Memory | None = None, **more: Any
) -> Any:
    inputs = [
        shared_input(module, f"INPUT{number}", [1, 16], "FP32", source, 64, 64 * number)
        for number in (0, 1)
    ]
    outputs = None
    if target is not None:
        outputs = [
            shared_output(module, f"OUTPUT{number}", target, 64, 64 * number) for number in (0, 1)
        ]
    return client.infer("add_sub", inputs, outputs=outputs, **more)


def described(module: ModuleType, result: Any, name: str) -> tuple[str, list[int]]:
    """Returns the fields of an output in shared memory; the response has no others."""
    output = result.get_output(name)
    if module is grpc_client:
        assert (
            list(result.get_response().raw_output_contents)[
                : len(result.get_response().outputs)
            ].count(b"")
            > 0
        )
        return output.datatype, list(output.shape)
    assert set(output) == {"name", "datatype", "shape"}
    return output["datatype"], output["shape"]


LEFT, RIGHT = np.arange(16, dtype=np.float32), np.full(16, 2, np.float32)


class TestInference:
    def test_inputs_and_outputs(self, module: ModuleType, client: Any, make_memory: Any) -> None:
        source, target = make_memory(128), make_memory(128)
        for memory in (source, target):
            memory.register(client)
        shm.set_shared_memory_region(source.handle, [LEFT, RIGHT])
        for _ in range(3):  # repeated requests use the fast path
            result = add_sub(module, client, source, target)
            assert described(module, result, "OUTPUT0") == ("FP32", [1, 16])
            assert np.array_equal(
                shm.get_contents_as_numpy(target.handle, np.float32, [16]), LEFT + RIGHT
            )
            assert np.array_equal(
                shm.get_contents_as_numpy(target.handle, np.float32, [16], 64), LEFT - RIGHT
            )
            shm.set_shared_memory_region(target.handle, [np.zeros(32, np.float32)])

    def test_new_data_in_the_same_region(
        self, module: ModuleType, client: Any, make_memory: Any
    ) -> None:
        source = make_memory(128)
        source.register(client)
        for value in (1, 2, 3):
            shm.set_shared_memory_region(source.handle, [np.full(32, value, np.float32)])
            assert add_sub(module, client, source).as_numpy("OUTPUT0")[0][0] == 2 * value

    def test_with_a_request_id(self, module: ModuleType, client: Any, make_memory: Any) -> None:
        source = make_memory(128)
        source.register(client)
        shm.set_shared_memory_region(source.handle, [LEFT, RIGHT])
        result = add_sub(module, client, source, request_id="seven")
        response = result.get_response()
        assert (response["id"] if module is http_client else response.id) == "seven"

    @pytest.mark.parametrize("count", [3000, 1 << 20, 3 << 20])
    def test_large_tensors(
        self, module: ModuleType, client: Any, make_memory: Any, count: int
    ) -> None:
        """Tensors too large for a message, and too large to be copied on the event loop."""
        source, target = make_memory(4 * count), make_memory(4 * count)
        for memory in (source, target):
            memory.register(client)
        data = np.random.default_rng(1).random(count, np.float32)
        shm.set_shared_memory_region(source.handle, [data])
        inputs = [shared_input(module, "INPUT0", [count], "FP32", source, 4 * count)]
        client.infer(
            "identity_fp32", inputs, outputs=[shared_output(module, "OUTPUT0", target, 4 * count)]
        )
        assert np.array_equal(shm.get_contents_as_numpy(target.handle, np.float32, [count]), data)

    def test_together_with_ordinary_tensors(
        self, module: ModuleType, client: Any, make_memory: Any
    ) -> None:
        source = make_memory(64)
        source.register(client)
        shm.set_shared_memory_region(source.handle, [LEFT])
        plain = module.InferInput("INPUT1", [1, 16], "FP32")
        plain.set_data_from_numpy(RIGHT.reshape(1, 16))
        for inputs in ([shared_input(module, "INPUT0", [1, 16], "FP32", source, 64), plain],) * 2:
            result = client.infer("add_sub", inputs)
            assert np.array_equal(result.as_numpy("OUTPUT0")[0], LEFT + RIGHT)

    def test_one_of_two_outputs_in_shared_memory(
        self, module: ModuleType, client: Any, make_memory: Any
    ) -> None:
        source = make_memory(256)
        source.register(client)
        shm.set_shared_memory_region(source.handle, [LEFT, RIGHT])
        inputs = [
            shared_input(module, f"INPUT{number}", [1, 16], "FP32", source, 64, 64 * number)
            for number in (0, 1)
        ]
        outputs = [
            shared_output(module, "OUTPUT1", source, 64, 128),
            module.InferRequestedOutput("OUTPUT0"),
        ]
        result = client.infer("add_sub", inputs, outputs=outputs)
        assert np.array_equal(result.as_numpy("OUTPUT0")[0], LEFT + RIGHT)
        assert np.array_equal(
            shm.get_contents_as_numpy(source.handle, np.float32, [16], 128), LEFT - RIGHT
        )

    def test_strings(self, module: ModuleType, client: Any, make_memory: Any) -> None:
        memory = make_memory(1024)
        memory.register(client)
        packed = serialize_byte_tensor(np.array([b"one", b"", b"three"], np.object_))
        shm.set_shared_memory_region(memory.handle, [packed])
        size = len(packed.item())
        inputs = [shared_input(module, "TEXT", [1, 3], "BYTES", memory, size)]
        client.infer(
            "identity_bytes", inputs, outputs=[shared_output(module, "SAME", memory, 512, 512)]
        )
        assert shm.get_contents_as_numpy(memory.handle, np.object_, [3], 512).tolist() == [
            b"one",
            b"",
            b"three",
        ]

    def test_rejects_a_string_with_a_wrong_length(
        self, module: ModuleType, client: Any, make_memory: Any
    ) -> None:
        memory = make_memory(64)
        memory.register(client)
        shm.set_shared_memory_region(memory.handle, [np.array([0xFFFFFFFF], np.uint32)])
        with pytest.raises(InferenceServerException, match="incomplete string data"):
            client.infer(
                "identity_bytes", [shared_input(module, "TEXT", [1, 1], "BYTES", memory, 8)]
            )

    def test_streams(self, server: Server, make_memory: Any) -> None:
        memory = make_memory(256)
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with grpc_client.InferenceServerClient(server.grpc) as client:
            memory.register(client)
            shm.set_shared_memory_region(memory.handle, [LEFT, RIGHT])
            client.start_stream(lambda result, error: results.put((result, error)))
            inputs = [
                shared_input(
                    grpc_client, f"INPUT{number}", [1, 16], "FP32", memory, 64, 64 * number
                )
                for number in (0, 1)
            ]
            client.async_stream_infer(
                "add_sub", inputs, outputs=[shared_output(grpc_client, "OUTPUT0", memory, 64, 128)]
            )
            result, error = results.get(timeout=20)
            assert error is None
            assert described(grpc_client, result, "OUTPUT0") == ("FP32", [1, 16])
            assert np.array_equal(
                shm.get_contents_as_numpy(memory.handle, np.float32, [16], 128), LEFT + RIGHT
            )
            client.stop_stream()
            client.unregister_system_shared_memory()

    def test_decoupled_models_write_every_response(self, server: Server, make_memory: Any) -> None:
        memory = make_memory(64)
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with grpc_client.InferenceServerClient(server.grpc) as client:
            memory.register(client)
            shm.set_shared_memory_region(memory.handle, [np.array([3], np.int32)])
            client.start_stream(lambda result, error: results.put((result, error)))
            outputs = [shared_output(grpc_client, "INDEX", memory, 4, 32)]
            inputs = [shared_input(grpc_client, "COUNT", [1], "INT32", memory, 4)]
            client.async_stream_infer(
                "repeat", inputs, outputs=outputs, enable_empty_final_response=True
            )
            for _ in range(4):
                assert results.get(timeout=20)[1] is None
            client.stop_stream()
            client.unregister_system_shared_memory()
        assert shm.get_contents_as_numpy(memory.handle, np.int32, [1], 32)[0] == 2


class TestErrors:
    def test_rejects_an_output_region_that_is_too_small(
        self, module: ModuleType, client: Any, make_memory: Any
    ) -> None:
        memory = make_memory(256)
        memory.register(client)
        inputs = [
            shared_input(module, f"INPUT{number}", [1, 16], "FP32", memory, 64, 64 * number)
            for number in (0, 1)
        ]
        with pytest.raises(InferenceServerException) as caught:
            client.infer(
                "add_sub", inputs, outputs=[shared_output(module, "OUTPUT0", memory, 63, 128)]
            )
        message = (
            "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) "
            "should be at least 64 bytes to hold the results"
        )
        assert caught.value.message() == message

    @pytest.mark.parametrize(
        ("offset", "num_bytes", "message"),
        [
            (128, 64, "Invalid offset for shared memory region: '{}'"),
            (100, 64, "Invalid offset + byte size for shared memory region: '{}'"),
            (2**62, 64, "Invalid offset for shared memory region: '{}'"),
            (0, 2**62, "Invalid offset + byte size for shared memory region: '{}'"),
            (
                0,
                60,
                "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 64, "
                "got 60",
            ),
        ],
    )
    def test_rejects_slices_outside_of_the_region(
        self,
        module: ModuleType,
        client: Any,
        make_memory: Any,
        offset: int,
        num_bytes: int,
        message: str,
    ) -> None:
        memory = make_memory(128)
        memory.register(client)
        inputs = [
            shared_input(module, "INPUT0", [1, 16], "FP32", memory, num_bytes, offset),
            shared_input(module, "INPUT1", [1, 16], "FP32", memory, 64),
        ]
        with pytest.raises(InferenceServerException) as caught:
            client.infer("add_sub", inputs)
        assert message.format(memory.name) in caught.value.message()

    def test_rejects_sums_that_overflow(self, server: Server, make_memory: Any) -> None:
        memory = make_memory(128)
        with http_client.InferenceServerClient(server.http) as client:
            memory.register(client)
            place = {
                "shared_memory_region": memory.name,
                "shared_memory_byte_size": 2**64 - 1,
                "shared_memory_offset": 16,
            }
            tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "parameters": place}
            status, body = server.post(
                "/v2/models/add_sub/infer", {"inputs": [tensor, {**tensor, "name": "INPUT1"}]}
            )
            client.unregister_system_shared_memory()
        assert status == 400
        assert json.loads(body)["error"].startswith(
            "Integer overflow detected: byte_size (18446744073709551615) + offset (16)"
        )

    def test_rejects_an_unknown_region(self, module: ModuleType, client: Any) -> None:
        tensor = module.InferInput("INPUT0", [4], "FP32")
        tensor.set_shared_memory("nobody", 16)
        with pytest.raises(
            InferenceServerException, match="Unable to find shared memory region: 'nobody'"
        ):
            client.infer("identity_fp32", [tensor])

    def test_registration(self, module: ModuleType, client: Any, make_memory: Any) -> None:
        memory = make_memory(128)
        memory.register(client)
        with pytest.raises(
            InferenceServerException,
            match=f"shared memory region '{memory.name}' already in manager",
        ):
            memory.register(client)
        with pytest.raises(
            InferenceServerException,
            match="failed to register shared memory region 'large': invalid args",
        ):
            client.register_system_shared_memory("large", memory.key, 1 << 30)
        with pytest.raises(
            InferenceServerException, match="Unable to open shared memory region: '/nosuch'"
        ):
            client.register_system_shared_memory("lost", "/nosuch", 16)

    @pytest.mark.parametrize("slashes", ["", "/", "//", "////"])
    def test_rejects_keys_reserved_by_triton(
        self, module: ModuleType, client: Any, slashes: str
    ) -> None:
        with pytest.raises(
            InferenceServerException,
            match="contains the reserved prefix 'triton_python_backend_shm_region_'",
        ):
            client.register_system_shared_memory(
                "own", f"{slashes}triton_python_backend_shm_region_abc", 16
            )

    def test_rejects_cuda_regions_without_a_gpu(self, module: ModuleType, client: Any) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.register_cuda_shared_memory("gpu", HANDLE, 0, 64)
        assert (
            "failed to register CUDA shared memory region: 'gpu', GPUs not supported"
            in caught.value.message()
        )

    def test_cuda_unregister_all_succeeds_without_a_gpu(
        self, module: ModuleType, client: Any
    ) -> None:
        """perf_analyzer unregisters all regions on every server."""
        client.unregister_cuda_shared_memory()
        status = client.get_cuda_shared_memory_status()
        assert not (status if module is http_client else status.regions)


HANDLE = base64.b64encode(bytes(range(64)))
"""A handle of no memory."""


class TestStatus:
    def test_over_http(self, server: Server, make_memory: Any) -> None:
        memory = make_memory(128)
        with http_client.InferenceServerClient(server.http) as client:
            client.register_system_shared_memory(memory.name, memory.key, 100, 20)
            expected = [{"name": memory.name, "key": memory.key, "offset": 20, "byte_size": 100}]
            assert client.get_system_shared_memory_status() == expected
            assert client.get_system_shared_memory_status(memory.name) == expected
            with pytest.raises(
                InferenceServerException,
                match=r"is registered as system shared memory, not CUDA shared memory",
            ):
                client.get_cuda_shared_memory_status(memory.name)
            client.unregister_system_shared_memory(memory.name)
            assert client.get_system_shared_memory_status() == []
            with pytest.raises(
                InferenceServerException,
                match=f"Unable to find system shared memory region: '{memory.name}'",
            ):
                client.get_system_shared_memory_status(memory.name)

    def test_over_grpc(self, server: Server, make_memory: Any) -> None:
        memory = make_memory(128)
        with grpc_client.InferenceServerClient(server.grpc) as client:
            client.register_system_shared_memory(memory.name, memory.key, 100, 20)
            region = client.get_system_shared_memory_status(memory.name).regions[memory.name]
            assert (region.name, region.key, region.offset, region.byte_size) == (
                memory.name,
                memory.key,
                20,
                100,
            )
            client.unregister_system_shared_memory()
            assert not client.get_system_shared_memory_status().regions


class TestInFlight:
    def test_unregistering_waits_for_the_response(
        self, server: Server, make_memory: Any, tmp_path: Path
    ) -> None:
        memory, gate = make_memory(1024), Gate(tmp_path)
        packed = serialize_byte_tensor(np.array([str(gate.path).encode()], np.object_))
        shm.set_shared_memory_region(memory.handle, [packed])
        with http_client.InferenceServerClient(server.http) as client:
            memory.register(client)
            place = {
                "shared_memory_region": memory.name,
                "shared_memory_byte_size": len(packed.item()),
            }
            target = {
                "shared_memory_region": memory.name,
                "shared_memory_byte_size": 4,
                "shared_memory_offset": 512,
            }
            body = {
                "inputs": [{"name": "GO", "datatype": "BYTES", "shape": [1], "parameters": place}],
                "outputs": [{"name": "TOGETHER", "parameters": target}],
            }
            call = HttpCall(server, "/v2/models/gate_plain/infer", body)
            gate.wait_entered()
            client.unregister_system_shared_memory(memory.name)
            assert [region["name"] for region in client.get_system_shared_memory_status()] == [
                memory.name
            ]
            gate.open()
            assert call.response()[0] == 200
            eventually(
                lambda: client.get_system_shared_memory_status() == [], "the region is released"
            )
        assert shm.get_contents_as_numpy(memory.handle, np.int32, [1], 512)[0] == 1

    def test_a_client_that_disconnects_releases_its_region(
        self, server: Server, make_memory: Any, tmp_path: Path
    ) -> None:
        memory, gate = make_memory(1024), Gate(tmp_path)
        packed = serialize_byte_tensor(np.array([str(gate.path).encode()], np.object_))
        shm.set_shared_memory_region(memory.handle, [packed])
        with http_client.InferenceServerClient(server.http) as client:
            memory.register(client)
            place = {
                "shared_memory_region": memory.name,
                "shared_memory_byte_size": len(packed.item()),
            }
            body = {
                "inputs": [{"name": "GO", "datatype": "BYTES", "shape": [1], "parameters": place}]
            }
            call = HttpCall(server, "/v2/models/gate_plain/infer", body)
            gate.wait_entered()
            client.unregister_system_shared_memory(memory.name)
            call.disconnect()
            gate.open()
            eventually(
                lambda: client.get_system_shared_memory_status() == [], "the region is released"
            )


class TestMalice:
    def test_survives_memory_that_is_truncated_during_requests(
        self, module: ModuleType, server: Server, client: Any, make_memory: Any
    ) -> None:
        """The server must respond. Neither it nor its workers may die of SIGBUS."""
        size = 4 << 20
        memory = make_memory(2 * size)
        memory.register(client)
        stop = threading.Event()
        failures: set[str] = set()

        def torment() -> None:
            while not stop.is_set():
                os.truncate(memory.path, 0)
                os.truncate(memory.path, 2 * size)

        thread = threading.Thread(target=torment)
        thread.start()
        try:
            for _ in range(30):
                inputs = [shared_input(module, "INPUT0", [size // 4], "FP32", memory, size)]
                try:
                    client.infer(
                        "identity_fp32",
                        inputs,
                        outputs=[shared_output(module, "OUTPUT0", memory, size, size)],
                    )
                except InferenceServerException as error:
                    failures.add(error.message())
        finally:
            stop.set()
            thread.join()
        assert failures <= {
            f"shared memory region '{memory.name}' is smaller now than it was when it was "
            "registered"
        }
        assert server.process.poll() is None
        assert server.is_ready()
        result = client.infer("add_sub", _plain_inputs(module))
        assert result.as_numpy("OUTPUT0") is not None

    def test_rejects_truncated_memory(
        self, module: ModuleType, server: Server, client: Any, make_memory: Any
    ) -> None:
        memory = make_memory(128)
        memory.register(client)
        os.truncate(memory.path, 10)
        with pytest.raises(InferenceServerException) as caught:
            add_sub(module, client, memory)
        assert caught.value.message() == (
            f"shared memory region '{memory.name}' is smaller now than it was when it was "
            "registered"
        )

    def test_rejects_files_outside_of_shared_memory(self, client: Any) -> None:
        for key in ("/../../etc/passwd", "/./x", "/..", "/a/b"):
            with pytest.raises(
                InferenceServerException, match="Unable to open shared memory region"
            ):
                client.register_system_shared_memory("theft", key, 16)

    def test_rejects_inputs_larger_than_the_memory_of_the_machine(
        self, module: ModuleType, server: Server, client: Any, make_memory: Any
    ) -> None:
        memory = make_memory(128)
        os.truncate(memory.path, 1 << 45)
        client.register_system_shared_memory(memory.name, memory.key, 1 << 45)
        with pytest.raises(InferenceServerException, match="more are too many"):
            client.infer(
                "identity_fp32",
                [shared_input(module, "INPUT0", [1 << 43], "FP32", memory, 1 << 45)],
            )
        assert server.is_ready()

    def test_the_server_has_no_named_shared_memory(self, server: Server) -> None:
        """Clients cannot register the server's memory, because the memory shared with workers has
        no name."""
        assert [
            name
            for name in os.listdir("/dev/shm")
            if "naiad" in name and not name.startswith("naiad-test")
        ] == []


def _plain_inputs(module: ModuleType) -> list[Any]:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensors.append(module.InferInput(name, [1, 16], "FP32"))
        tensors[-1].set_data_from_numpy(LEFT.reshape(1, 16))
    return tensors


class TestSwitchedOff:
    """Client shared memory is off by default."""

    def test_registration(
        self, module: ModuleType, main_server: Endpoints, make_memory: Any
    ) -> None:
        memory = make_memory(128)
        with connect(module, main_server) as client:
            with pytest.raises(InferenceServerException) as caught:
                memory.register(client)
            assert caught.value.message() == DISABLED
            with pytest.raises(InferenceServerException) as caught:
                client.register_cuda_shared_memory("gpu", HANDLE, 0, 64)
            assert caught.value.message() == DISABLED

    def test_unregistration(self, module: ModuleType, main_server: Endpoints) -> None:
        with connect(module, main_server) as client:
            for unregister in (
                client.unregister_system_shared_memory,
                client.unregister_cuda_shared_memory,
            ):
                for names in ((), ("x",)):
                    with pytest.raises(InferenceServerException) as caught:
                        unregister(*names)
                    assert caught.value.message() == DISABLED
            client.get_system_shared_memory_status()

    @pytest.mark.parametrize("is_output", [False, True])
    def test_inference(self, module: ModuleType, main_server: Endpoints, is_output: bool) -> None:
        with connect(module, main_server) as client:
            inputs, outputs = _plain_inputs(module), None
            if is_output:
                outputs = [module.InferRequestedOutput("OUTPUT0")]
                outputs[0].set_shared_memory("x", 64)
            else:
                inputs[0].set_shared_memory("x", 64)
            with pytest.raises(InferenceServerException) as caught:
                client.infer("add_sub", inputs, outputs=outputs)
            assert caught.value.message() == DISABLED


@pytest.mark.skipif(
    not oracle.is_installed(),
    reason="perf_analyzer is not installed: `python -m bench.oracle install` brings it",
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["add_sub", "identity_fp32"])
def test_perf_analyzer(server: Server, protocol: str, model: str) -> None:
    flags = [
        "-m",
        model,
        "-i",
        protocol,
        "-u",
        server.http if protocol == "http" else server.grpc,
        "--concurrency-range",
        "4",
    ]
    flags += [
        "--shared-memory",
        "system",
        "--output-shared-memory-size",
        "65536",
        "--shape",
        "INPUT0:16384",
    ][: 4 if model == "add_sub" else 6]
    flags += [
        "--measurement-mode",
        "count_windows",
        "--measurement-request-count",
        "50",
        "--stability-percentage",
        "999",
    ]
    command = oracle.perf_analyzer_command([*flags, "--max-trials", "3"])
    done = subprocess.run(
        command, env=oracle.perf_analyzer_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]
    assert "Throughput:" in done.stdout
    assert "error" not in done.stderr.lower()
