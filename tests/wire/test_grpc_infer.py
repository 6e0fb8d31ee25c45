"""Every RPC of the frontend over a core that computes in place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from naiad.pb import grpc_service_pb2 as pb
from naiad.pb import health_pb2
from naiad.pb.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.frame import ErrorCode
from tests.wire.grpc_rig import SERVICE, ClientCall, Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.close()


def add_sub(request_id: str = "", batch: int = 1) -> ModelInferRequest:
    message = ModelInferRequest(model_name="add_sub", id=request_id)
    for i in range(2):
        message.inputs.add(name=f"INPUT{i}", datatype="FP32", shape=[batch, 16])
        message.raw_input_contents.append(np.full(16 * batch, i + 1, np.float32).tobytes())
    return message


def one(model: str, request_id: str = "", data: bytes = b"\0\0\0\0") -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
    return message


async def infer(
    rig: Rig, message: ModelInferRequest, metadata: dict[str, str] | None = None
) -> ClientCall:
    return await rig.unary("ModelInfer", message.SerializeToString(), metadata)


class TestModelInfer:
    async def test_answer(self, rig: Rig) -> None:
        call = await infer(rig, add_sub("7"))
        assert call.status == 0
        response = ModelInferResponse.FromString(call.messages[0][1])
        assert (response.model_name, response.model_version, response.id) == ("add_sub", "1", "7")
        assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
        assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [3.0] * 16
        assert np.frombuffer(response.raw_output_contents[1], np.float32).tolist() == [-1.0] * 16

    async def test_a_large_request_is_received_in_the_models_memory(self, rig: Rig) -> None:
        data = np.arange(1_000_000, dtype=np.float32).tobytes()
        call = await infer(rig, one("identity", "8", data))
        assert ModelInferResponse.FromString(call.messages[0][1]).raw_output_contents[0] == data
        (buffer,) = rig.core.buffers
        tensor = rig.core.requests[0].inputs[0]
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.obj is buffer.obj
        assert np.frombuffer(tensor.data, np.uint8).__array_interface__["data"][0] % 64 == 0

    async def test_a_large_request_to_a_model_without_such_memory(self, rig: Rig) -> None:
        data = np.arange(1_000_000, dtype=np.float32).tobytes()
        rig.core.models_with_buffers.clear()
        call = await infer(rig, one("identity", "8", data))
        assert ModelInferResponse.FromString(call.messages[0][1]).raw_output_contents[0] == data
        tensor = rig.core.requests[0].inputs[0]
        assert np.frombuffer(tensor.data, np.uint8).__array_interface__["data"][0] % 64 == 0

    @pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
    @pytest.mark.parametrize("model", ["identity", "faulty"])
    async def test_its_memory_is_given_back_at_once(
        self, rig: Rig, method: str, model: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By reference counts alone: shared memory must not wait for the garbage collector."""
        memory: list[weakref.ref[np.ndarray]] = []

        def input_buffer(model_name: str, num_bytes: int) -> memoryview:
            array = np.empty(num_bytes, np.uint8)
            memory.append(weakref.ref(array))
            return array.data

        monkeypatch.setattr(rig.core, "input_buffer", input_buffer)
        rig.core.keeps_requests = False
        gc.disable()
        try:
            call = await rig.unary(method, one(model, "8", bytes(1_000_000)).SerializeToString())
            assert call.status is not None
            assert [array() is None for array in memory] == [True]
        finally:
            gc.enable()

    async def test_classification(self, rig: Rig) -> None:
        message = one("classes", data=np.array([1, 9, 3, 4], np.float32).tobytes())
        message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
        response = ModelInferResponse.FromString((await infer(rig, message)).messages[0][1])
        assert response.outputs[0].datatype == "BYTES"
        assert b"9.000000:1:bee" in response.raw_output_contents[0]

    async def test_deadline_reaches_the_request(self, rig: Rig) -> None:
        await infer(rig, add_sub(), {"grpc-timeout": "2S"})
        assert rig.core.requests[0].deadline_ns == rig.clock.now_ns() + 2_000_000_000
        await infer(rig, add_sub())
        assert rig.core.requests[1].deadline_ns == 0

    async def test_cancelled_by_the_client(self, rig: Rig) -> None:
        call = await infer(rig, one("held"))
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert rig.core.held[0].is_cancelled

    async def test_response_then_final_flag(self, rig: Rig) -> None:
        call = await infer(rig, one("held"))
        rig.core.held[0].answer(is_final=False)
        await rig.settle()
        assert (call.status, call.message) == (None, "")
        rig.core.held[0].stream.close()
        await rig.settle()
        assert (call.status, len(call.messages)) == (0, 1)

    @pytest.mark.parametrize(
        ("message", "status", "words"),
        [
            (one("nothing"), 5, "Request for unknown model: 'nothing' is not found"),
            (ModelInferRequest(), 5, "Request for unknown model: '' is not found"),
            (
                one("repeat"),
                12,
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            ),
            (one("faulty"), 3, "the model does not like it"),
            (one("double"), 13, "expected a single response, got 2"),
        ],
    )
    async def test_errors(
        self, rig: Rig, message: ModelInferRequest, status: int, words: str
    ) -> None:
        call = await infer(rig, message)
        assert (call.status, call.message) == (status, words)
        assert call.messages == []

    async def test_no_response_at_all(self, rig: Rig) -> None:
        call = await infer(rig, one("held"))
        rig.core.held[0].stream.close()
        await rig.settle()
        assert (call.status, call.message) == (13, "received an unexpected null response")

    async def test_refused_by_the_core(self, rig: Rig) -> None:
        message = one("identity")
        message.parameters["refuse"].bool_param = True
        call = await infer(rig, message)
        assert (call.status, call.message) == (14, "Exceeds maximum queue size")

    async def test_not_protobuf(self, rig: Rig) -> None:
        call = await rig.unary("ModelInfer", b"\xff\xff\xff")
        assert (call.status, call.message) == (13, "Unable to parse request")

    async def test_of_two_faults_the_model_is_told(self, rig: Rig) -> None:
        message = one("nothing")
        message.parameters["triton_x"].bool_param = True
        assert (
            await infer(rig, message)
        ).message == "Request for unknown model: 'nothing' is not found"
        message.model_name = "identity"
        assert (await infer(rig, message)).status == 3

    async def test_an_answer_that_cannot_be_encoded(self, rig: Rig) -> None:
        call = await infer(rig, one("held"))
        held = rig.core.held[0]
        held.request.form = None
        held.request.requested_outputs = 5  # type: ignore[assignment]
        held.answer()
        await rig.settle()
        assert (call.status, call.message) == (13, "the response could not be encoded")


class TestHeaderForward:
    async def test_matching_names_become_parameters(self) -> None:
        rig = Rig(GrpcOptions(header_forward_pattern="^x-user|TRACE"))
        await infer(rig, add_sub(), {"x-user": "me", "my-trace": "7", "other": "no"})
        assert rig.core.requests[0].parameters == {"x-user": "me", "my-trace": "7"}
        await rig.close()

    async def test_case_may_matter(self) -> None:
        rig = Rig(GrpcOptions(header_forward_pattern="(?-i)TRACE"))
        await infer(rig, add_sub(), {"my-trace": "7"})
        assert rig.core.requests[0].parameters == {}
        await rig.close()

    @pytest.mark.parametrize("name", ["triton_x", "priority"])
    async def test_reserved_names(self, name: str) -> None:
        rig = Rig(GrpcOptions(header_forward_pattern=".*"))
        call = await infer(rig, add_sub(), {name: "7"})
        assert (call.status, call.message) == (
            3,
            f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
        )
        await rig.close()


class TestRestrictedProtocols:
    async def test_a_secret_is_needed(self) -> None:
        rig = Rig(GrpcOptions(restricted_protocols={"inference": ("key", "secret")}))
        header = "triton-grpc-protocol-key"
        for metadata in ({}, {header: "wrong"}, {header: "secre"}, {"key": "secret"}):
            call = await infer(rig, add_sub(), metadata)
            assert (call.status, call.message) == (
                14,
                f"This protocol is restricted, expecting header '{header}'",
            )
        assert (await infer(rig, add_sub(), {header: "secret"})).status == 0
        assert (await rig.unary("ServerLive", b"")).status == 0
        await rig.close()

    async def test_every_rpc_of_the_service_belongs_to_a_group(self) -> None:
        from naiad.frontends.grpc.restriction import PROTOCOLS

        rig = Rig()
        grouped = set().union(*PROTOCOLS.values())
        served = {
            path.decode().rpartition("/")[2]
            for path in rig.endpoint.methods
            if not path.startswith(b"/grpc.reflection")
        }
        assert served == grouped
        await rig.close()


class TestInformation:
    async def ask(self, rig: Rig, name: str, request: Message | None, kind: type[Any]) -> Any:
        call = await rig.unary(name, request.SerializeToString() if request is not None else b"")
        assert call.status == 0, call.message
        return kind.FromString(call.messages[0][1])

    async def test_health(self, rig: Rig) -> None:
        assert (await self.ask(rig, "ServerLive", None, pb.ServerLiveResponse)).live
        assert (await self.ask(rig, "ServerReady", None, pb.ServerReadyResponse)).ready
        rig.core.ready = False
        assert not (await self.ask(rig, "ServerReady", None, pb.ServerReadyResponse)).ready
        assert (
            await self.ask(
                rig, "ModelReady", pb.ModelReadyRequest(name="add_sub"), pb.ModelReadyResponse
            )
        ).ready
        assert not (
            await self.ask(
                rig, "ModelReady", pb.ModelReadyRequest(name="no"), pb.ModelReadyResponse
            )
        ).ready

    async def test_metadata(self, rig: Rig) -> None:
        server = await self.ask(rig, "ServerMetadata", None, pb.ServerMetadataResponse)
        assert (server.name, server.version, list(server.extensions)[:1]) == (
            "triton",
            "2.73.0",
            ["classification"],
        )
        model = await self.ask(
            rig, "ModelMetadata", pb.ModelMetadataRequest(name="add_sub"), pb.ModelMetadataResponse
        )
        assert (model.name, list(model.versions), model.platform) == ("add_sub", ["1"], "python")
        assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
            ("INPUT0", "FP32", [-1, 16]),
            ("INPUT1", "FP32", [-1, 16]),
        ]
        config = await self.ask(
            rig, "ModelConfig", pb.ModelConfigRequest(name="add_sub"), pb.ModelConfigResponse
        )
        assert config.config.max_batch_size == 64
        call = await rig.unary(
            "ModelMetadata", pb.ModelMetadataRequest(name="no").SerializeToString()
        )
        assert call.status == 5

    async def test_statistics(self, rig: Rig) -> None:
        await infer(rig, add_sub())
        found = await self.ask(
            rig,
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="add_sub"),
            pb.ModelStatisticsResponse,
        )
        (model,) = found.model_stats
        assert (model.name, model.version, model.inference_count) == ("add_sub", "1", 1)
        assert model.inference_stats.success.ns == 1000
        everything = await self.ask(rig, "ModelStatistics", None, pb.ModelStatisticsResponse)
        assert len(everything.model_stats) == len(rig.core.models)
        call = await rig.unary(
            "ModelStatistics", pb.ModelStatisticsRequest(name="no").SerializeToString()
        )
        assert (call.status, call.message) == (3, "requested model 'no' is not available")

    async def test_not_protobuf(self, rig: Rig) -> None:
        call = await rig.unary("ServerLive", b"\xff")
        assert (call.status, call.message) == (13, "Unable to parse request")


class TestRepository:
    async def test_index(self, rig: Rig) -> None:
        call = await rig.unary("RepositoryIndex", b"")
        models = pb.RepositoryIndexResponse.FromString(call.messages[0][1]).models
        assert (models[0].name, models[0].version, models[0].state) == ("add_sub", "1", "READY")
        assert (models[-1].name, models[-1].state) == ("sleeping", "")
        call = await rig.unary(
            "RepositoryIndex", pb.RepositoryIndexRequest(ready=True).SerializeToString()
        )
        ready = pb.RepositoryIndexResponse.FromString(call.messages[0][1]).models
        assert {row.name for row in ready} == set(rig.core.models)
        assert all(row.state == "READY" for row in ready)

    @pytest.mark.parametrize(
        "name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"]
    )
    async def test_repository_names_are_not_supported(self, rig: Rig, name: str) -> None:
        call = await rig.unary(
            name, pb.RepositoryIndexRequest(repository_name="r").SerializeToString()
        )
        assert (call.status, call.message) == (
            12,
            "'repository_name' specification is not supported",
        )

    async def test_load_and_unload(self, rig: Rig) -> None:
        load = pb.RepositoryModelLoadRequest(model_name="m")
        load.parameters["config"].string_param = "{}"
        load.parameters["file:1/model.py"].bytes_param = b"code"
        assert (await rig.unary("RepositoryModelLoad", load.SerializeToString())).status == 0
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].bool_param = True
        assert (await rig.unary("RepositoryModelUnload", unload.SerializeToString())).status == 0
        assert rig.core.loaded == [("m", {"config": "{}", "file:1/model.py": b"code"})]
        assert rig.core.unloaded == [("m", True)]

    async def test_a_load_that_fails(self, rig: Rig) -> None:
        call = await rig.unary(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="nope").SerializeToString(),
        )
        assert (call.status, call.message) == (
            13,
            "failed to load 'nope', failed to poll from model repository",
        )

    @pytest.mark.parametrize(
        ("name", "parameter", "words"),
        [
            ("x", {"string_param": "y"}, "unrecognized load parameter 'x'."),
            (
                "config",
                {"bool_param": True},
                "invalid value type for load parameter 'config', expected string_param.",
            ),
            (
                "file:a",
                {"string_param": "y"},
                "invalid value type for load parameter 'file:a', expected bytes_param.",
            ),
        ],
    )
    async def test_wrong_parameters(
        self, rig: Rig, name: str, parameter: dict[str, Any], words: str
    ) -> None:
        load = pb.RepositoryModelLoadRequest(
            model_name="m", parameters={name: pb.ModelRepositoryParameter(**parameter)}
        )
        call = await rig.unary("RepositoryModelLoad", load.SerializeToString())
        assert (call.status, call.message) == (3, words)

    async def test_wrong_unload_parameter(self, rig: Rig) -> None:
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].int64_param = 1
        call = await rig.unary("RepositoryModelUnload", unload.SerializeToString())
        assert (call.status, call.message) == (
            3,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        )


class TestExtensions:
    @pytest.mark.parametrize(
        "name",
        [
            "SystemSharedMemoryStatus",
            "CudaSharedMemoryStatus",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryUnregister",
        ],
    )
    async def test_asking_for_nothing_succeeds(self, rig: Rig, name: str) -> None:
        call = await rig.unary(name, b"")
        assert (call.status, call.messages) == (0, [(0, b"")])

    @pytest.mark.parametrize(("kind", "word"), [("System", "system"), ("Cuda", "cuda")])
    async def test_regions(self, rig: Rig, kind: str, word: str) -> None:
        call = await rig.unary(f"{kind}SharedMemoryStatus", b"\n\x01r")
        assert (call.status, call.message) == (
            5,
            f"Unable to find {word} shared memory region: 'r'",
        )
        assert (await rig.unary(f"{kind}SharedMemoryUnregister", b"\n\x01r")).status == 0
        call = await rig.unary(f"{kind}SharedMemoryRegister", b"\n\x01r")
        assert call.status == 12
        assert call.message.startswith("Client shared memory is disabled.")

    async def test_every_rpc_of_the_proto_is_served(self, rig: Rig) -> None:
        service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        assert {f"{SERVICE}{method.name}".encode() for method in service.methods} <= set(
            rig.endpoint.methods
        )


class TestHealth:
    CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"

    def status(self, message: bytes) -> int:
        return health_pb2.HealthCheckResponse.FromString(message).status

    @pytest.mark.parametrize(
        ("service", "is_ready", "status"),
        [
            ("", True, 1),
            ("", False, 2),
            ("inference.GRPCInferenceService", True, 1),
            ("whatever", False, 2),
            ("add_sub", False, 1),
            ("sleeping", True, 2),
        ],
    )
    async def test_check(self, rig: Rig, service: str, is_ready: bool, status: int) -> None:
        rig.core.ready = is_ready
        call = await rig.unary(
            self.CHECK, health_pb2.HealthCheckRequest(service=service).SerializeToString()
        )
        assert self.status(call.messages[0][1]) == status

    async def test_watch_tells_changes_only(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("naiad.frontends.grpc.health.WATCH_INTERVAL_S", 0.001)
        call = await rig.unary(self.WATCH, b"")
        assert [self.status(message) for _, message in call.messages] == [1]
        rig.core.ready = False
        while len(call.messages) < 2:
            await rig.settle()
        assert [self.status(message) for _, message in call.messages] == [1, 2]
        assert call.status is None
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert not rig.protocol.connection.streams


class TestReflection:
    @pytest.mark.parametrize("version", ["v1", "v1alpha"])
    async def test_services_and_files(self, rig: Rig, version: str) -> None:
        call = rig.open(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        rig.send(call, b"\x3a\x01*")
        rig.send(call, b"\x22" + bytes((len(SERVICE) - 2,)) + SERVICE[1:-1].encode())
        rig.send(call, b"\x1a\x12model_config.proto")
        rig.send(call, b"\x22\x07no.Such")
        rig.half_close(call)
        await rig.settle()
        services, symbol, file, unknown = (message for _, message in call.messages)
        assert b"inference.GRPCInferenceService" in services
        assert b"grpc.health.v1.Health" in services
        assert b"ModelStreamInfer" in symbol
        assert b"model_config.proto" in symbol
        assert b"naiad" not in symbol
        assert b"ModelInstanceGroup" in file
        assert b"not found: no.Such" in unknown
        assert call.status == 0

    async def test_rubbish(self, rig: Rig) -> None:
        call = rig.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        rig.send(call, b"\x08\x01")
        await rig.settle()
        assert call.status == 13
