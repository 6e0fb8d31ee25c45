"""Every RPC but the two of inference, over a core that computes in place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from naiad.pb import grpc_service_pb2 as pb
from naiad.pb import health_pb2
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.frame import ErrorCode
from tests.wire.grpc_rig import SERVICE, ClientCall, Rig
from tests.wire.test_grpc_infer import add_sub


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.close()


async def infer(rig: Rig, metadata: dict[str, str] | None = None) -> ClientCall:
    return await rig.unary("ModelInfer", add_sub().SerializeToString(), metadata)


class TestRestrictedProtocols:
    async def test_a_restricted_rpc_needs_the_secret(self) -> None:
        rig = Rig(GrpcOptions(restricted_protocols={"inference": ("key", "secret")}))
        header = "triton-grpc-protocol-key"
        for metadata in ({}, {header: "wrong"}, {header: "secre"}, {"key": "secret"}):
            call = await infer(rig, metadata)
            assert (call.status, call.message) == (
                14,
                f"This protocol is restricted, expecting header '{header}'",
            )
        assert (await infer(rig, {header: "secret"})).status == 0
        assert (await rig.unary("ServerLive", b"")).status == 0
        await rig.close()


class TestInformation:
    async def call(self, rig: Rig, name: str, request: Message | None, kind: type[Any]) -> Any:
        call = await rig.unary(name, request.SerializeToString() if request is not None else b"")
        assert call.status == 0, call.message
        return kind.FromString(call.messages[0][1])

    async def test_health(self, rig: Rig) -> None:
        assert (await self.call(rig, "ServerLive", None, pb.ServerLiveResponse)).live
        assert (await self.call(rig, "ServerReady", None, pb.ServerReadyResponse)).ready
        rig.core.ready = False
        assert not (await self.call(rig, "ServerReady", None, pb.ServerReadyResponse)).ready
        assert (
            await self.call(
                rig, "ModelReady", pb.ModelReadyRequest(name="add_sub"), pb.ModelReadyResponse
            )
        ).ready
        assert not (
            await self.call(
                rig, "ModelReady", pb.ModelReadyRequest(name="no"), pb.ModelReadyResponse
            )
        ).ready

    async def test_metadata(self, rig: Rig) -> None:
        server = await self.call(rig, "ServerMetadata", None, pb.ServerMetadataResponse)
        assert (server.name, server.version, list(server.extensions)[:1]) == (
            "triton",
            "2.73.0",
            ["classification"],
        )
        model = await self.call(
            rig, "ModelMetadata", pb.ModelMetadataRequest(name="add_sub"), pb.ModelMetadataResponse
        )
        assert (model.name, list(model.versions), model.platform) == ("add_sub", ["1"], "python")
        assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
            ("INPUT0", "FP32", [-1, 16]),
            ("INPUT1", "FP32", [-1, 16]),
        ]
        config = await self.call(
            rig, "ModelConfig", pb.ModelConfigRequest(name="add_sub"), pb.ModelConfigResponse
        )
        assert config.config.max_batch_size == 64
        call = await rig.unary(
            "ModelMetadata", pb.ModelMetadataRequest(name="no").SerializeToString()
        )
        assert call.status == 5

    async def test_statistics(self, rig: Rig) -> None:
        await infer(rig)
        found = await self.call(
            rig,
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="add_sub"),
            pb.ModelStatisticsResponse,
        )
        (model,) = found.model_stats
        assert (model.name, model.version, model.inference_count) == ("add_sub", "1", 1)
        assert model.inference_stats.success.ns == 1000
        everything = await self.call(rig, "ModelStatistics", None, pb.ModelStatisticsResponse)
        assert len(everything.model_stats) == len(rig.core.models)
        call = await rig.unary(
            "ModelStatistics", pb.ModelStatisticsRequest(name="no").SerializeToString()
        )
        assert (call.status, call.message) == (3, "requested model 'no' is not available")

    async def test_a_message_that_is_no_protobuf(self, rig: Rig) -> None:
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
        ("name", "parameter", "message"),
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
    async def test_wrong_load_parameters(
        self, rig: Rig, name: str, parameter: dict[str, Any], message: str
    ) -> None:
        load = pb.RepositoryModelLoadRequest(
            model_name="m", parameters={name: pb.ModelRepositoryParameter(**parameter)}
        )
        call = await rig.unary("RepositoryModelLoad", load.SerializeToString())
        assert (call.status, call.message) == (3, message)

    async def test_wrong_unload_parameter(self, rig: Rig) -> None:
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].int64_param = 1
        call = await rig.unary("RepositoryModelUnload", unload.SerializeToString())
        assert (call.status, call.message) == (
            3,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        )


class TestExtensions:
    @pytest.mark.parametrize("name", ["SystemSharedMemoryStatus", "CudaSharedMemoryStatus"])
    async def test_an_empty_request_succeeds(self, rig: Rig, name: str) -> None:
        call = await rig.unary(name, b"")
        assert (call.status, call.messages) == (0, [(0, b"")])

    @pytest.mark.parametrize(("kind", "word"), [("System", "system"), ("Cuda", "cuda")])
    async def test_unknown_regions(self, rig: Rig, kind: str, word: str) -> None:
        call = await rig.unary(f"{kind}SharedMemoryStatus", b"\n\x01r")
        assert (call.status, call.message) == (
            5,
            f"Unable to find {word} shared memory region: 'r'",
        )

    @pytest.mark.parametrize("name", [b"", b"\n\x01r"])
    @pytest.mark.parametrize("action", ["Register", "Unregister"])
    @pytest.mark.parametrize("kind", ["System", "Cuda"])
    async def test_shared_memory_is_off_by_default(
        self, rig: Rig, kind: str, action: str, name: bytes
    ) -> None:
        call = await rig.unary(f"{kind}SharedMemory{action}", name)
        assert (call.status, call.message) == (
            12,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to "
            "enable.",
        )

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
    async def test_check_sends_the_status(
        self, rig: Rig, service: str, is_ready: bool, status: int
    ) -> None:
        rig.core.ready = is_ready
        call = await rig.unary(
            self.CHECK, health_pb2.HealthCheckRequest(service=service).SerializeToString()
        )
        assert self.status(call.messages[0][1]) == status

    @pytest.mark.parametrize("service", ["", "add_sub"])
    async def test_check_asks_the_model(self, rig: Rig, service: str) -> None:
        rig.core.models["add_sub"].ask_ready = lambda on_ready: on_ready(False)  # type: ignore[method-assign]
        message = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        call = await rig.unary(self.CHECK, message)
        assert self.status(call.messages[0][1]) == 2

    async def test_watch_sends_a_message_per_change(
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

    async def test_all_watches_share_one_look_at_the_status(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("naiad.frontends.grpc.health.WATCH_INTERVAL_S", 0.001)
        rig = Rig(GrpcOptions(max_connection_watches=1000))
        looks = 0
        is_ready = rig.core.is_ready

        def counting() -> bool:
            nonlocal looks
            looks += 1
            return is_ready()

        monkeypatch.setattr(rig.core, "is_ready", counting)
        calls = [await self.watch(rig, name) for name in ("", "server") for _ in range(250)]
        looks, before = 0, looks
        rig.core.ready = False
        while any(len(call.messages) < 2 for call in calls):
            await rig.settle()
        assert all(
            [self.status(message) for _, message in call.messages] == [1, 2] for call in calls
        )
        assert looks < 100
        assert before < 100
        await rig.close()

    async def test_a_model_that_is_loaded_later(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("naiad.frontends.grpc.health.WATCH_INTERVAL_S", 0.001)
        rig.core.ready = False
        add_sub = rig.core.models.pop("add_sub")
        call = await self.watch(rig, "add_sub")
        assert [self.status(message) for _, message in call.messages] == [2]
        rig.core.models["add_sub"] = add_sub
        while len(call.messages) < 2:
            await rig.settle()
        assert [self.status(message) for _, message in call.messages] == [2, 1]

    async def test_watches_are_limited_per_connection_and_in_all(self) -> None:
        rig = Rig(GrpcOptions(max_connection_watches=2, max_watches=3))
        first = [await self.watch(rig) for _ in range(3)]
        assert [call.status for call in first] == [None, None, 8]
        assert first[2].message == (
            "the server allows 2 Watch calls on one connection, try again later"
        )
        transport = rig.transport
        rig.connect()
        second = [await self.watch(rig) for _ in range(2)]
        assert [call.status for call in second] == [None, 8]
        assert second[1].message == "the server allows 3 Watch calls, try again later"
        transport.close()
        await rig.settle()
        assert (await self.watch(rig)).status is None
        await rig.close()

    async def test_a_watch_ends_when_the_server_stops(self, rig: Rig) -> None:
        call = await self.watch(rig)
        stopping = asyncio.ensure_future(rig.endpoint.stop(3600))
        await rig.settle()
        assert [self.status(message) for _, message in call.messages] == [1, 2]
        assert (call.status, call.message) == (14, "the server is shutting down")
        await stopping

    async def watch(self, rig: Rig, service: str = "") -> ClientCall:
        return await rig.unary(
            self.WATCH, health_pb2.HealthCheckRequest(service=service).SerializeToString()
        )


class TestReflection:
    @pytest.mark.parametrize("version", ["v1", "v1alpha"])
    async def test_reflection_finds_services_and_files(self, rig: Rig, version: str) -> None:
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

    async def test_a_request_that_is_no_message(self, rig: Rig) -> None:
        call = rig.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        rig.send(call, b"\x08\x01")
        await rig.settle()
        assert call.status == 13
