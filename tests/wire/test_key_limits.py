"""Limits of keys over the wire: statuses, headers and bodies, over HTTP, OpenAI and gRPC."""

from __future__ import annotations

import base64
import json

from google.protobuf import any_pb2, duration_pb2

from naiad.ipc.generation_call import CompletionPiece, GenerationEvent, event_tensor
from naiad.keys.api_class import SCOPES
from naiad.pb import grpc_service_pb2 as pb
from tests.fakes.keys import KeyRing
from tests.fakes.model import respond
from tests.wire.grpc_rig import Rig
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import language_server, serving
from tests.wire.test_grpc_infer import add_sub
from tests.wire.test_guard import bearer, binary_request
from tests.wire.test_large_requests import NUMBERS, finish, side_thread_idle
from tests.wire.test_large_requests import request as large_request

CHAT = {
    "model": "chat",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 50,
}


@on_uvloop
async def test_requests_per_minute_over_http() -> None:
    ring = KeyRing()
    key = ring.create("one", rpm_limit=4)
    async with serving(guard=ring.guard()) as server:
        client = await Client.connect(server.port)
        for left in (3, 2, 1, 0):
            client.send(binary_request(key))
            reply = await client.read()
            assert reply.status == 200
            assert reply.headers["x-ratelimit-limit-requests"] == "4"
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
        assert server.core.num_validated >= 1, "the fast path has limits, too"
        client.send(binary_request(key))
        reply = await client.read()
        assert reply.status == 429
        assert reply.headers["Retry-After"] == "60"
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert reply.error().endswith("has reached its limit of 4 requests per minute")
        ring.time.advance(seconds=60)
        client.send(binary_request(key))
        assert (await client.read()).status == 200
        await client.close()


@on_uvloop
async def test_a_client_that_leaves_frees_its_place() -> None:
    ring = KeyRing()
    key = ring.create("one", max_parallel_requests=1)
    async with serving(guard=ring.guard()) as server:
        for _ in range(3):
            client = await Client.connect(server.port)
            body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}
            client.request("POST", "/v2/models/held/infer", _json(body), bearer(key))
            held = await server.core.next_held()
            other = await Client.connect(server.port)
            assert (await other.call("GET", "/v2", b"", bearer(key))).status == 429
            await other.close()
            await client.close()
            while not held.is_cancelled:
                await server.core.on_cancelled.wait()
            server.core.on_cancelled.clear()
        half = await Client.connect(server.port)
        half.send(
            f"POST /v2/models/held/infer HTTP/1.1\r\nHost: t\r\nx-api-key: {key}\r\n"
            "Content-Length: 100\r\n\r\nhalf".encode()
        )
        other = await Client.connect(server.port)
        while (await other.call("GET", "/v2", b"", bearer(key))).status != 429:
            pass
        await half.close()
        while (await other.call("GET", "/v2", b"", bearer(key))).status != 200:
            pass
        await other.close()


@on_uvloop
async def test_tokens_of_a_chat_are_reserved_and_settled() -> None:
    ring = KeyRing()
    key = ring.create("one", tpm_limit=100)
    async with language_server(ring.guard()) as (core, server):
        first = await Client.connect(server.port)
        first.request("POST", "/v1/chat/completions", _json(CHAT), bearer(key))
        _, held = await core.next_call()
        second = await Client.connect(server.port)
        reply = await second.call("POST", "/v1/chat/completions", CHAT, bearer(key))
        error = reply.json()["error"]
        assert (reply.status, error["code"], error["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        assert "tokens per minute" in error["message"]
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) < 50
        piece = CompletionPiece(0, "x", [1], None, "stop")
        respond(held.request, held.stream, [event_tensor(GenerationEvent([piece], 9, 0, 1))])
        reply = await first.read()
        assert reply.status == 200
        reply = await second.call("GET", "/v1/models", b"", bearer(key))
        assert reply.headers["x-ratelimit-remaining-tokens"] == "90"
        await first.close()
        await second.close()


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


async def test_limits_over_grpc_say_when_to_try_again() -> None:
    ring = KeyRing()
    key = ring.create("one", rpm_limit=1, scopes=SCOPES)
    rig = Rig(guard=ring.guard())
    message = add_sub().SerializeToString()
    call = await rig.unary("ModelInfer", message, bearer(key))
    assert call.status == 0
    assert call.trailers is not None
    assert call.trailers["x-ratelimit-remaining-requests"] == "0"
    call = await rig.unary("ModelInfer", message, bearer(key))
    assert (call.status, call.headers["retry-after"]) == (8, "60")
    assert call.headers["grpc-retry-pushback-ms"] == "60000"
    details = call.headers["grpc-status-details-bin"]
    raw = base64.b64decode(details + "=" * (-len(details) % 4))
    # google.rpc.Status: code, message, details. The fields are read by hand, as the type is not
    # installed everywhere.
    assert raw[:2] == b"\x08\x08"
    position = raw.index(b"type.googleapis.com/google.rpc.RetryInfo") - 2
    detail = any_pb2.Any.FromString(raw[position:])
    assert detail.type_url.endswith("RetryInfo")
    assert duration_pb2.Duration.FromString(detail.value[2:]).seconds == 60
    await rig.close()


async def test_a_limit_is_an_error_message_of_a_stream_that_goes_on() -> None:
    ring = KeyRing()
    key = ring.create("one", rpm_limit=1)
    rig = Rig(guard=ring.guard())
    call = rig.open("ModelStreamInfer", bearer(key))
    for _ in range(2):
        rig.send(call, add_sub().SerializeToString())
    await rig.settle()
    ring.time.advance(seconds=61)
    rig.send(call, add_sub().SerializeToString(), end=True)
    await rig.settle()
    responses = [pb.ModelStreamInferResponse.FromString(data) for _, data in call.messages]
    errors = [response.error_message for response in responses]
    assert errors[0] == errors[2] == ""
    assert errors[1].endswith("has reached its limit of 1 requests per minute")
    assert call.status == 0
    await rig.close()


async def test_a_message_that_ends_its_stream_gives_its_place_back() -> None:
    ring = KeyRing()
    guard = ring.guard()
    key = ring.create("one", max_parallel_requests=1)
    rig = Rig(guard=guard)
    for _ in range(2):
        call = rig.open("ModelStreamInfer", bearer(key))
        rig.send(call, b"\xff")
        await rig.settle()
        assert (call.status, call.message) == (13, "Unable to parse request")
    assert guard.accounts.all()[0].num_parallel == 0
    await rig.close()


async def test_messages_behind_one_that_takes_long_are_counted_by_themselves() -> None:
    ring = KeyRing()
    guard = ring.guard()
    key = ring.create("one", max_parallel_requests=3)
    rig = Rig(guard=guard)
    slow = large_request(request_id="slow")
    slow.inputs[0].contents.int_contents.extend(NUMBERS)
    call = rig.open("ModelStreamInfer", bearer(key))
    for message in (slow, add_sub("a"), add_sub("b")):
        rig.send(call, message.SerializeToString())
    rig.half_close(call)
    rig.exchange()
    assert guard.accounts.all()[0].num_parallel == 3
    await finish(rig, call)
    assert len(call.messages) == 3
    assert guard.accounts.all()[0].num_parallel == 0
    await rig.close()


async def test_messages_behind_one_that_takes_long_end_with_their_client() -> None:
    ring = KeyRing()
    guard = ring.guard()
    key = ring.create("one", max_parallel_requests=2)
    rig = Rig(guard=guard)
    slow = large_request()
    slow.inputs[0].contents.int_contents.extend(NUMBERS)
    call = rig.open("ModelStreamInfer", bearer(key))
    for message in (slow, add_sub()):
        rig.send(call, message.SerializeToString())
    rig.exchange()
    assert guard.accounts.all()[0].num_parallel == 2
    rig.protocol.connection_lost(None)
    await side_thread_idle(rig)
    assert guard.accounts.all()[0].num_parallel == 0
    await rig.close()


@on_uvloop
async def test_tokens_of_keys_without_limits_are_counted() -> None:
    ring = KeyRing()
    key = ring.create("one")
    guard = ring.guard()
    async with language_server(guard) as (core, server):
        client = await Client.connect(server.port)
        client.request("POST", "/v1/chat/completions", _json(CHAT), bearer(key))
        _, held = await core.next_call()
        piece = CompletionPiece(0, "x", [1], None, "stop")
        respond(held.request, held.stream, [event_tensor(GenerationEvent([piece], 9, 0, 1))])
        reply = await client.read()
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("x-ratelimit")]
        (account,) = guard.accounts.all()
        assert (account.num_prompt_tokens, account.num_output_tokens) == (9, 1)
        assert (account.num_requests, account.num_parallel) == (1, 0)
        await client.close()
