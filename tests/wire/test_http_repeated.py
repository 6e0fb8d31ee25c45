"""Requests that repeat the last one of their connection: the short way gives what the long way gives, and ends where it should."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import Consumer, ResponseStream
from naiad.core.tensor import tensor_from_numpy
from naiad.transport.http1_exchange import Exchange
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_fakes import FakeCore, HttpServer, respond, serving

LENGTH = "Inference-Header-Content-Length"
BINARY = {"parameters": {"binary_data": True}}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ask(data: bytes, *, model: str = "id_fp32", id: str | None = None, is_binary: bool = True, headers: str = "") -> bytes:
    """The bytes of a whole request."""
    document: dict[str, object] = {} if id is None else {"id": id}
    document["inputs"] = [
        {"name": "IN", "datatype": "FP32", "shape": [len(data) // 4], "parameters": {"binary_data_size": len(data)}},
    ]
    document["outputs"] = [{"name": "OUT"} | (BINARY if is_binary else {})]
    text = json.dumps(document, separators=(",", ":")).encode()
    lengths = f"Content-Length: {len(text) + len(data)}\r\n{LENGTH}: {len(text)}\r\n"
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\n{lengths}{headers}\r\n".encode() + text + data


@asynccontextmanager
async def connected(core: FakeCore | None = None) -> AsyncIterator[tuple[HttpServer, Client]]:
    async with serving(core=core) as server:
        client = await Client.connect(server.port)
        try:
            yield server, client
        finally:
            await client.close()


async def talk(client: Client, data: bytes) -> Reply:
    client.send(data)
    return await client.read()


CONVERSATIONS = {
    "the same again": [ask(floats(n, 2)) for n in range(5)],
    "with ids": [ask(floats(n, 2), id=id) for n, id in enumerate(["1", "2", "30", "4", "50", "51", 'a"b', "ü", "x" * 200, "6", "7"])],
    "with and without": [ask(floats(n, 2), id=id) for n, id in enumerate([None, "1", None, None, "2", "3", None])],
    "other sizes": [ask(floats(*range(n))) for n in (2, 2, 3, 3, 2, 0, 0, 2, 2)],
    "as many bytes, other text": [ask(floats(1, 2), id=id) for id in ("ab", "cd", '"b', "ef")],
    "other heads": [ask(floats(n, 2), headers=f"X-N: {n % 2}\r\n") for n in range(6)],
    "answers in JSON": [ask(floats(n, 2), is_binary=False) for n in range(4)],
    "compressed answers": [ask(floats(n, 2), headers="Accept-Encoding: gzip\r\n") for n in range(4)],
    "answers with parameters": [ask(floats(n, 2), model="with_parameters") for n in range(4)],
    "unknown models": [ask(floats(1, 2)), ask(floats(1, 2), model="no_fp32"), ask(floats(1, 2)), ask(floats(1, 2), model="no_fp32")],
    "a wrong head in between": [ask(floats(1, 2)), ask(floats(1, 2)), ask(floats(1, 2)).replace(b'"FP32"', b'"FP64"'), ask(floats(1, 2))],
    "larger than copies": [ask(floats(*range(3000))) for _ in range(4)],
}


@pytest.mark.parametrize("requests", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_both_ways_give_the_same(requests: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Reply]] = []

    @on_uvloop
    async def run() -> None:
        async with connected() as (server, client):
            seen.append([await talk(client, request) for request in requests])
            assert server.frontend.num_requests == len(requests)

    run()
    monkeypatch.setattr(Exchange, "expect_again", lambda self, again: None)
    run()
    assert seen[0] == seen[1]


@on_uvloop
async def test_the_short_way_is_taken() -> None:
    async with connected() as (server, client):
        for n in range(5):
            reply = await talk(client, ask(floats(n, 2)))
            assert reply.body.endswith(floats(n, 2))
        assert server.core.num_again == 4
        for id in ("1", "2", "3"):
            reply = await talk(client, ask(floats(7, 8), id=id))
            assert json.loads(reply.body[: int(reply.headers[LENGTH])])["id"] == id
        assert server.core.num_again == 4 + 2


@on_uvloop
async def test_strings_are_looked_at_each_time() -> None:
    async with connected() as (server, client):
        good, bad = b"\x02\0\0\0ab", b"\x09\0\0\0ab"
        for data, status in ((good, 200), (good, 200), (bad, 400), (good, 200)):
            text = json.dumps(
                {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]}
            ).encode()
            reply = await client.call("POST", "/v2/models/id_bytes/infer", text + data, {LENGTH: str(len(text))})
            assert reply.status == status
        assert server.core.num_again == 0


@on_uvloop
async def test_pipelined_and_in_pieces() -> None:
    async with connected() as (server, client):
        await talk(client, ask(floats(0, 0)))
        client.send(b"".join(ask(floats(n, 1)) for n in range(4)))
        assert [(await client.read()).body[-8:] for _ in range(4)] == [floats(n, 1) for n in range(4)]
        held_up = ask(floats(1, 2), model="held")
        client.send(held_up)
        held = await server.core.next_held()
        client.send(held_up + ask(floats(5, 6)))
        later = await server.core.next_held()
        for each in (later, held):
            respond(each.request, each.stream, [tensor_from_numpy("OUT", np.array([3], np.float32))])
        answers = [await client.read() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert answers[2].body.endswith(floats(5, 6))
        whole = ask(floats(8, 9))
        client.send(whole[:100])
        while not any(connection._pending for connection in server.frontend.endpoint.connections):
            await asyncio.sleep(0)
        client.send(whole[100:])
        assert (await client.read()).body.endswith(floats(8, 9))


@pytest.mark.parametrize("when", ["before", "after"])
@on_uvloop
async def test_a_bug_costs_one_request(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer of that one, when it comes after all, does not become the answer of the next."""
    async with connected() as (server, client):
        request = ask(floats(1, 2), model="held")
        client.send(request)
        held = await server.core.next_held()
        respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([1, 2], np.float32))])
        await client.read()
        streams: list[ResponseStream] = []

        class Broken(ResponseStream):
            __slots__ = ()

            def deliver_to(self, consumer: Consumer) -> None:
                super().deliver_to(consumer)
                raise ZeroDivisionError

        def broken(request: object, found: object) -> ResponseStream:
            if when == "before":
                raise ZeroDivisionError
            streams.append(Broken())
            return streams[-1]

        with monkeypatch.context() as patch:
            patch.setattr(server.core, "infer_again", broken)
            reply = await talk(client, request)
            assert (reply.status, reply.error()) == (500, "internal error")
        client.send(request)
        held = await server.core.next_held()
        for stream in streams:
            respond(held.request, stream, [tensor_from_numpy("OUT", np.array([3, 4], np.float32))])
        respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([5, 6], np.float32))])
        assert (await client.read()).body.endswith(floats(5, 6))


@on_uvloop
async def test_a_response_and_the_end_that_are_there_before_they_are_asked_for() -> None:
    core = FakeCore()

    def compute(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        respond(request, stream, [tensor_from_numpy("OUT", request.inputs[0].as_numpy())], is_final=False)
        stream.close()

    core.models["id_fp32"].compute = compute
    async with connected(core) as (_, client):
        for n in range(3):
            reply = await talk(client, ask(floats(n, 2)))
            assert (reply.status, reply.body[-8:]) == (200, floats(n, 2))
        assert core.num_again == 2


@on_uvloop
async def test_a_compressed_request_is_no_pattern_for_one_that_is_not() -> None:
    """Lengths in its head are of the compressed bytes: here, of all of the JSON and too few bytes of the tensor."""
    async with connected() as (server, client):
        head, end, body = ask(bytes(4000)).partition(b"\r\n\r\n")
        text = body[:-4000]
        length = len(text) + 3
        head = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % length) + b"\r\nContent-Encoding: gzip" + end
        reply = await talk(client, head + _gzip(body, length))
        assert (reply.status, reply.body[-4000:]) == (200, bytes(4000))
        reply = await talk(client, head + text + b"abc")
        assert reply.status == 400
        assert server.core.num_again == 0


def _gzip(data: bytes, length: int) -> bytes:
    """As long as it should be: the extra field makes up for what is missing."""
    packed = zlib.compress(data, 9, wbits=-15)
    end = packed + struct.pack("<II", zlib.crc32(data), len(data))
    extra = length - len(end) - 12
    return b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", extra) + bytes(extra) + end


@on_uvloop
async def test_a_head_that_is_new_with_every_request_is_not_kept() -> None:
    async with connected() as (server, client):
        header = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
        for _ in range(2):
            assert (await talk(client, ask(floats(1, 2), headers=header))).status == 200
        assert server.core.num_again == 0


@on_uvloop
async def test_empty_lines_before_it_are_not_the_beginning_of_a_request() -> None:
    """They do not count against the time that it may take to receive one."""
    async with connected() as (server, client):
        await talk(client, ask(floats(1, 2)))
        [connection] = server.frontend.endpoint.connections
        client.send(b"\r\n")
        while not connection._pending:
            await asyncio.sleep(0)
        client.send(b"\r\n")
        while connection._pending:
            await asyncio.sleep(0)
        assert (await talk(client, ask(floats(1, 2)))).status == 200
        limits, endpoint = server.frontend.endpoint.limits, server.frontend.endpoint
        connection.check_deadlines(endpoint.now_s + limits.receive_timeout_s + 1)
        assert (await talk(client, ask(floats(1, 2)))).status == 200
        assert server.core.num_again == 2
