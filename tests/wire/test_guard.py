"""The guard on every route and RPC that exists: refused before a body is read, on open connections
and streams too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest

from naiad.keys.api_class import HEALTH, PAGE, SCOPES, UNCLASSIFIED
from naiad.keys.guard import Guard
from naiad.keys.key import ApiKey
from naiad.pb import grpc_service_pb2 as pb
from naiad.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.entrances import Entrance, http_entrances, rpc_entrances
from tests.fakes.keys import KeyRing
from tests.fakes.model import FakeModel
from tests.wire.grpc_rig import Rig
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import language_server, serving
from tests.wire.test_grpc_infer import add_sub

OPEN = (HEALTH, PAGE)
HTTP = http_entrances()
RPCS = rpc_entrances()
UNREAD_BYTES = (5, 1 << 20)
"""Lengths of bodies that the tests announce and never send."""


class Ring(KeyRing):
    """One key of each kind that is refused, and one that may do everything."""

    def __init__(self) -> None:
        super().__init__()
        hour = self.time.now.replace(hour=1)
        self.good = self.create("good", scopes=SCOPES)
        self.expired = self.create("expired", scopes=SCOPES, expires_at=hour)
        self.revoked = self.create("revoked", scopes=SCOPES)
        self.other_model = self.create("other model", scopes=SCOPES, models=("nothing*",))
        self.time.advance(hours=2)
        self.revoke(self.revoked)

    def other_scope(self, api: str) -> str:
        """A key with every scope except this one."""
        return self.create(f"not {api}", scopes=tuple(name for name in SCOPES if name != api))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def guard(ring: Ring) -> Guard:
    return ring.guard()


# HTTP.


async def refusal_without_body(
    port: int, entrance: Entrance, headers: dict[str, str], num_bytes: int
) -> tuple[int, Any]:
    """The response to a head whose body never comes."""
    client = await Client.connect(port)
    fields = {"Host": "test", "Content-Length": str(num_bytes), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    client.send(f"{entrance.method} {entrance.path} HTTP/1.1\r\n{head}\r\n".encode())
    reply = await client.read()
    await client.close()
    return reply.status, reply.json()["error"]


@pytest.mark.parametrize("entrance", HTTP, ids=lambda one: f"{one.method} {one.path}")
@on_uvloop
async def test_every_route_refuses_before_it_reads_the_body(entrance: Entrance) -> None:
    ring = Ring()
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        if entrance.api in OPEN:
            client = await Client.connect(server.port)
            assert (await client.call(entrance.method, entrance.path)).status != 401
            await client.close()
            return
        wrong = ring.good[:-4] + "AAAA"
        cases: list[tuple[str, dict[str, str], tuple[int, ...]]] = [
            ("an API key is required", {}, (401,)),
            ("not valid", bearer(wrong), (401,)),
            ("not valid", {"x-api-key": "sk-naiad-zzzzzzzz-x"}, (401,)),
            ("has expired", bearer(ring.expired), (401,)),
            ("was revoked", bearer(ring.revoked), (401,)),
        ]
        if entrance.api != UNCLASSIFIED:
            lacking = ring.other_scope(entrance.api)
            cases.append(("does not have the scope", bearer(lacking), (403,)))
        if entrance.names_model:
            cases.append(("", bearer(ring.other_model), (400, 404)))
        for text, headers, statuses in cases:
            for num_bytes in UNREAD_BYTES:
                status, error = await refusal_without_body(
                    server.port, entrance, headers, num_bytes
                )
                is_openai = entrance.path.startswith("/v1")
                message = error["message"] if is_openai else error
                assert status in statuses, (text, status)
                assert text in message
        assert server.core.requests == []
        assert server.core.loaded == []


@pytest.mark.parametrize("entrance", HTTP, ids=lambda one: f"{one.method} {one.path}")
@on_uvloop
async def test_every_route_accepts_a_key_with_its_scope(entrance: Entrance) -> None:
    ring = Ring()
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        client = await Client.connect(server.port)
        reply = await client.call(entrance.method, entrance.path, b"", bearer(ring.good))
        assert reply.status not in (401, 403)
        await client.close()


@on_uvloop
async def test_a_refused_body_is_skipped_and_the_connection_goes_on() -> None:
    ring = Ring()
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        client = await Client.connect(server.port)
        client.send(b"POST /v2/logging HTTP/1.1\r\nHost: t\r\nContent-Length: 44\r\n\r\nGET /v2/lo")
        assert (await client.read()).status == 401
        # The rest of the body looks like a request, and is none.
        client.send(b"gging HTTP/1.1\r\nHost: t\r\n\r\n       ")
        client.request("GET", "/v2", headers=bearer(ring.good))
        reply = await client.read()
        assert (reply.status, b"extensions" in reply.body) == (200, True)
        for _ in range(2):  # pipelined
            client.request("POST", "/v2/logging", b"{}")
        client.request("GET", "/v2", headers=bearer(ring.good))
        assert [(await client.read()).status for _ in range(3)] == [401, 401, 200]
        await client.close()


@on_uvloop
async def test_a_large_or_chunked_body_ends_the_connection() -> None:
    async with serving(guard=Ring().guard()) as server:
        for field in (
            "Content-Length: 100000000",
            "Transfer-Encoding: chunked",
            "Content-Length: 5\r\nExpect: 100-continue",
        ):
            client = await Client.connect(server.port)
            client.send(f"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\n{field}\r\n\r\n".encode())
            reply = await client.read()
            assert (reply.status, reply.headers["Connection"]) == (401, "close")
            assert await client.is_closed_by_server()
            await client.close()


@on_uvloop
async def test_errors_of_openai_routes_have_openai_s_shape() -> None:
    ring = Ring()
    async with language_server(ring.guard()) as (_, server):
        client = await Client.connect(server.port)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        reply = await client.call("POST", "/v1/chat/completions", body)
        error = reply.json()["error"]
        assert (reply.status, error["code"], error["type"]) == (
            401,
            "invalid_api_key",
            "invalid_request_error",
        )
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        lacking = ring.other_scope("inference")
        reply = await client.call("POST", "/v1/chat/completions", body, bearer(lacking))
        assert (reply.status, reply.json()["error"]["code"]) == (403, "insufficient_permissions")
        reply = await client.call("POST", "/v1/chat/completions", body, bearer(ring.other_model))
        assert (reply.status, reply.json()["error"]) == (
            404,
            {
                "message": "The model 'm' does not exist",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            },
        )
        await client.close()


def binary_request(key: str) -> bytes:
    data = np.arange(16, dtype=np.float32).tobytes()
    inputs = [
        {
            "name": name,
            "shape": [1, 16],
            "datatype": "FP32",
            "parameters": {"binary_data_size": len(data)},
        }
        for name in ("INPUT0", "INPUT1")
    ]
    text = json.dumps({"inputs": inputs}).encode()
    body = text + data * 2
    return (
        f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {len(text)}\r\n\r\n"
    ).encode() + body


@on_uvloop
async def test_a_revoked_key_fails_on_the_fast_path_of_an_open_connection() -> None:
    ring = Ring()
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        client = await Client.connect(server.port)
        for _ in range(5):
            client.send(binary_request(ring.good))
            assert (await client.read()).status == 200
        assert server.core.num_validated >= 3
        assert {request.identity.name for request in server.core.requests} == {"good"}  # type: ignore[union-attr]
        ring.revoke(ring.good)
        client.send(binary_request(ring.good))
        assert (await client.read()).status == 401
        await client.close()


@pytest.mark.parametrize("operation", ["load", "unload"])
@on_uvloop
async def test_white_space_around_a_name_does_not_open_another_model(operation: str) -> None:
    """The repository ignores the white space. The pattern of a key must not match it."""
    ring = Ring()
    key = ring.create("one more", scopes=SCOPES, models=("?add_sub", "add_sub?"))
    own = ring.create("own", scopes=SCOPES, models=("add_sub",))
    async with serving(guard=ring.guard()) as server:
        client = await Client.connect(server.port)
        for name in ("%20add_sub", "%09add_sub", "add_sub%0A", "%0D%0B%0Cadd_sub%20"):
            path = f"/v2/repository/models/{name}/{operation}"
            reply = await client.call("POST", path, b"", bearer(key))
            assert (reply.status, reply.json()["error"]) == (
                404,
                "Request for unknown model: 'add_sub' is not found",
            )
            assert (server.core.loaded, server.core.unloaded) == ([], [])
        path = f"/v2/repository/models/%20add_sub/{operation}"
        assert (await client.call("POST", path, b"", bearer(own))).status == 200
        await client.close()


@on_uvloop
async def test_lists_show_only_what_a_key_may_see() -> None:
    ring = Ring()
    key = ring.create("some", scopes=SCOPES, models=("add_*", "old"))
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        client = await Client.connect(server.port)
        reply = await client.call("POST", "/v2/repository/index", b"", bearer(key))
        assert [row["name"] for row in reply.json()] == ["add_sub", "old"]
        reply = await client.call("GET", "/v2/models/stats", b"", bearer(key))
        assert [row["name"] for row in reply.json()["model_stats"]] == ["add_sub"]
        reply = await client.call("GET", "/v2/health/details", b"", bearer(key))
        assert [row["name"] for row in reply.json()["models"]] == ["add_sub"]
        await client.close()
    async with language_server(ring.guard()) as (_, server):
        client = await Client.connect(server.port)
        everything = await client.call("GET", "/v1/models", b"", bearer(ring.good))
        some = await client.call("GET", "/v1/models", b"", bearer(key))
        assert everything.json()["data"]
        assert some.json()["data"] == []
        await client.close()


# gRPC.


@pytest.fixture
async def rig(guard: Guard) -> AsyncIterator[Rig]:
    rig = Rig(guard=guard)
    yield rig
    await rig.close()


@pytest.mark.parametrize("entrance", RPCS, ids=lambda one: one.path)
async def test_every_rpc_refuses_before_it_reads_a_message(
    ring: Ring, rig: Rig, entrance: Entrance
) -> None:
    if entrance.api in OPEN:
        call = rig.open(entrance.path)
        await rig.settle()
        assert call.status is None
        rig.half_close(call)
        await rig.settle()
        return
    cases: list[tuple[dict[str, str], int, str]] = [
        ({}, 16, "an API key is required"),
        (bearer(ring.good[:-4] + "AAAA"), 16, "not valid"),
        ({"x-api-key": "sk-naiad-zzzzzzzz-x"}, 16, "not valid"),
        (bearer(ring.expired), 16, "has expired"),
        (bearer(ring.revoked), 16, "was revoked"),
    ]
    if entrance.api != UNCLASSIFIED:
        cases.append((bearer(ring.other_scope(entrance.api)), 7, "does not have the scope"))
    for metadata, status, text in cases:
        call = rig.open(entrance.path, metadata)
        await rig.settle()
        assert (call.status, text in call.message) == (status, True), call.message
    call = rig.open(entrance.path, bearer(ring.good))
    await rig.settle()
    assert call.status is None
    rig.half_close(call)
    await rig.settle()


async def test_of_two_keys_in_one_call_none_counts(ring: Ring, rig: Rig) -> None:
    """A proxy may check the first and Naiad the last, or the other way round. HTTP refuses, too."""
    wrong = f"Bearer {ring.good[:-4]}AAAA"
    for name, values in {
        "authorization": (wrong, f"Bearer {ring.good}"),
        "x-api-key": ("sk-naiad-zzzzzzzz-x", ring.good),
    }.items():
        for pair in (values, values[::-1], (values[1], values[1])):
            call = rig.open("ServerMetadata", more=[(name, value) for value in pair])
            rig.send(call, b"", end=True)
            await rig.settle()
            assert (call.status, call.messages) == (16, [])
            async with serving(guard=ring.guard()) as server:
                client = await Client.connect(server.port)
                lines = "".join(f"{name}: {value}\r\n" for value in pair)
                client.send(f"GET /v2 HTTP/1.1\r\nHost: t\r\n{lines}\r\n".encode())
                assert (await client.read()).status == 401
                await client.close()


@pytest.mark.parametrize("rpc", ["Check", "Watch"])
async def test_the_health_service_tells_of_models_only_whoever_may_see_them(
    ring: Ring, rig: Rig, rpc: str
) -> None:
    """To everybody else the name is an unknown one, which is the server's."""
    request = HealthCheckRequest(service="sleeping").SerializeToString()
    serving, not_serving = 1, 2
    for headers, expected in (
        ({}, serving),
        (bearer(ring.good[:-4] + "AAAA"), serving),
        (bearer(ring.other_model), serving),
        (bearer(ring.other_scope("metadata")), serving),
        (bearer(ring.good), not_serving),
    ):
        call = rig.open(f"/grpc.health.v1.Health/{rpc}", headers)
        rig.send(call, request, end=True)
        await rig.settle()
        assert HealthCheckResponse.FromString(call.messages[0][1]).status == expected
        rig.client.sender.reset(call.stream, 8)
        await rig.settle()


HIDDEN = "add_sub"
MESSAGES: dict[str, Any] = {
    "ModelReady": pb.ModelReadyRequest(name=HIDDEN),
    "ModelMetadata": pb.ModelMetadataRequest(name=HIDDEN),
    "ModelConfig": pb.ModelConfigRequest(name=HIDDEN),
    "ModelStatistics": pb.ModelStatisticsRequest(name=HIDDEN),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name=HIDDEN),
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name=HIDDEN),
    "TraceSetting": pb.TraceSettingRequest(model_name=HIDDEN),
    "ModelInfer": add_sub(),
}


def test_every_rpc_that_names_a_model_is_here() -> None:
    """ModelStreamInfer has a test of its own."""
    naming = set()
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        fields = {field.name for field in method.input_type.fields}
        is_region = "SharedMemory" in method.name
        if "model_name" in fields or ("name" in fields and not is_region):
            naming.add(method.name)
    assert naming == {*MESSAGES, "ModelStreamInfer"}


@pytest.mark.parametrize("name", MESSAGES)
async def test_every_rpc_hides_models_of_others(ring: Ring, rig: Rig, name: str) -> None:
    message = MESSAGES[name].SerializeToString()
    call = await rig.unary(name, message, bearer(ring.other_model))
    assert (call.status, call.message) == (
        5,
        "Request for unknown model: 'add_sub' is not found",
    )
    assert rig.core.requests == []
    assert rig.core.loaded == []


@pytest.mark.parametrize("kind", [pb.RepositoryModelLoadRequest, pb.RepositoryModelUnloadRequest])
async def test_white_space_around_a_name_does_not_open_another_model_over_grpc(
    ring: Ring, rig: Rig, kind: type[Any]
) -> None:
    key = ring.create("one more", scopes=SCOPES, models=("?add_sub", "add_sub?"))
    own = ring.create("own", scopes=SCOPES, models=("add_sub",))
    rpc = kind.DESCRIPTOR.name.removesuffix("Request")
    for name in (" add_sub", "\tadd_sub", "add_sub\n", "\r\v\fadd_sub "):
        call = await rig.unary(rpc, kind(model_name=name).SerializeToString(), bearer(key))
        assert (call.status, call.message) == (
            5,
            "Request for unknown model: 'add_sub' is not found",
        )
        assert (rig.core.loaded, rig.core.unloaded) == ([], [])
    call = await rig.unary(rpc, kind(model_name=" add_sub").SerializeToString(), bearer(own))
    assert call.status == 0


async def test_grpc_lists_show_only_what_a_key_may_see(ring: Ring, rig: Rig) -> None:
    key = ring.create("some", scopes=SCOPES, models=("add_*",))
    call = await rig.unary("RepositoryIndex", b"", bearer(key))
    index = pb.RepositoryIndexResponse.FromString(call.messages[0][1])
    assert [row.name for row in index.models] == ["add_sub"]
    call = await rig.unary("ModelStatistics", b"", bearer(key))
    statistics = pb.ModelStatisticsResponse.FromString(call.messages[0][1])
    assert [row.name for row in statistics.model_stats] == ["add_sub"]


async def test_a_revoked_key_fails_on_the_fast_path_of_an_open_grpc_connection(
    ring: Ring, rig: Rig
) -> None:
    message = add_sub().SerializeToString()
    for _ in range(6):
        assert (await rig.unary("ModelInfer", message, bearer(ring.good))).status == 0
    assert rig.core.num_validated >= 1
    assert {request.identity.name for request in rig.core.requests} == {"good"}  # type: ignore[union-attr]
    ring.revoke(ring.good)
    assert (await rig.unary("ModelInfer", message, bearer(ring.good))).status == 16


async def test_a_revoked_key_fails_on_an_open_stream(ring: Ring, rig: Rig) -> None:
    call = rig.open("ModelStreamInfer", bearer(ring.good))
    rig.send(call, add_sub().SerializeToString())
    await rig.settle()
    assert (call.status, len(call.messages)) == (None, 1)
    ring.revoke(ring.good)
    rig.send(call, add_sub().SerializeToString())
    await rig.settle()
    assert (call.status, len(call.messages)) == (16, 1)


async def test_a_stream_hides_models_of_others(ring: Ring, rig: Rig) -> None:
    call = rig.open("ModelStreamInfer", bearer(ring.other_model))
    rig.send(call, add_sub().SerializeToString(), end=True)
    await rig.settle()
    response = pb.ModelStreamInferResponse.FromString(call.messages[0][1])
    assert response.error_message == "Request for unknown model: 'add_sub' is not found"
    assert rig.core.requests == []


def test_the_ring_is_what_it_says(ring: Ring) -> None:
    states: dict[str, ApiKey] = {key.name: key for key in ring.document.keys}
    now = ring.time.now
    assert {name: key.state(now) for name, key in states.items()} == {
        "good": "active",
        "expired": "expired",
        "revoked": "revoked",
        "other model": "active",
    }


# What models see.


@on_uvloop
async def test_a_model_that_asks_for_it_sees_the_key() -> None:
    ring = Ring()
    key = ring.create("team", metadata={"team": "red"})
    async with serving(guard=ring.guard(), render_metrics=bytes) as server:
        spec = msgspec.structs.replace(server.core.models["add_sub"].spec, shows_api_key=True)
        server.core.models["add_sub"] = FakeModel(spec)
        client = await Client.connect(server.port)
        for sender in (key, key, ring.good, key, key):
            client.send(binary_request(sender))
            assert (await client.read()).status == 200
        seen = [request.parameters for request in server.core.requests]
        mine = {"api_key_id": key[9:17], "api_key_team": "red"}
        assert seen == [mine, mine, {"api_key_id": ring.good[9:17]}, mine, mine]
        assert server.core.num_validated == 0
        await client.close()


async def test_a_model_that_asks_for_it_sees_the_key_over_grpc(ring: Ring, rig: Rig) -> None:
    spec = msgspec.structs.replace(rig.core.models["add_sub"].spec, shows_api_key=True)
    rig.core.models["add_sub"] = FakeModel(spec)
    for _ in range(6):
        call = await rig.unary("ModelInfer", add_sub().SerializeToString(), bearer(ring.good))
        assert call.status == 0
    assert [request.parameters for request in rig.core.requests] == [
        {"api_key_id": ring.good[9:17]}
    ] * 6
