"""Requests that repeat the last one of their connection: the fast path gives what the full path
gives, and ends where it should."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib

import numpy as np
import pytest

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import Consumer, ResponseStream
from naiad.core.tensor import tensor_from_numpy
from tests.fakes.core import FakeCore
from tests.fakes.model import respond
from tests.wire.fast_path_http_conversation import (
    BINARY,
    LENGTH,
    ask_binary,
    check_both_paths,
    connected,
    floats,
    talk,
)
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import HttpServer


@pytest.mark.parametrize("requests", BINARY.values(), ids=BINARY)
def test_both_paths_give_the_same(requests: list[bytes]) -> None:
    async def converse(server: HttpServer, client: Client) -> list[Reply]:
        return [await talk(client, request) for request in requests]

    check_both_paths(converse, len(requests))


@on_uvloop
async def test_the_fast_path_is_used() -> None:
    async with connected() as (server, client):
        for n in range(5):
            reply = await talk(client, ask_binary(floats(n, 2)))
            assert reply.body.endswith(floats(n, 2))
        assert server.core.num_validated == 4
        for id in ("1", "2", "3"):
            reply = await talk(client, ask_binary(floats(7, 8), id=id))
            assert json.loads(reply.body[: int(reply.headers[LENGTH])])["id"] == id
        assert server.core.num_validated == 4 + 2


@on_uvloop
async def test_strings_are_looked_at_each_time() -> None:
    async with connected() as (server, client):
        good, bad = b"\x02\0\0\0ab", b"\x09\0\0\0ab"
        for data, status in ((good, 200), (good, 200), (bad, 400), (good, 200)):
            text = json.dumps(
                {
                    "inputs": [
                        {
                            "name": "IN",
                            "datatype": "BYTES",
                            "shape": [1],
                            "parameters": {"binary_data_size": 6},
                        }
                    ]
                }
            ).encode()
            reply = await client.call(
                "POST", "/v2/models/id_bytes/infer", text + data, {LENGTH: str(len(text))}
            )
            assert reply.status == status
        assert server.core.num_validated == 0


@on_uvloop
async def test_pipelined_and_in_pieces() -> None:
    async with connected() as (server, client):
        await talk(client, ask_binary(floats(0, 0)))
        client.send(b"".join(ask_binary(floats(n, 1)) for n in range(4)))
        assert [(await client.read()).body[-8:] for _ in range(4)] == [
            floats(n, 1) for n in range(4)
        ]
        held_up = ask_binary(floats(1, 2), model="held")
        client.send(held_up)
        held = await server.core.next_held()
        client.send(held_up + ask_binary(floats(5, 6)))
        later = await server.core.next_held()
        for each in (later, held):
            respond(
                each.request, each.stream, [tensor_from_numpy("OUT", np.array([3], np.float32))]
            )
        answers = [await client.read() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert answers[2].body.endswith(floats(5, 6))
        whole = ask_binary(floats(8, 9))
        client.send(whole[:100])
        while not any(connection._pending for connection in server.frontend.endpoint.connections):
            await asyncio.sleep(0)
        client.send(whole[100:])
        assert (await client.read()).body.endswith(floats(8, 9))


@pytest.mark.parametrize("when", ["before", "after"])
@on_uvloop
async def test_a_bug_costs_one_request(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer of that one, when it comes after all, does not become the answer of the
    next."""
    async with connected() as (server, client):
        request = ask_binary(floats(1, 2), model="held")
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
            patch.setattr(server.core, "infer_validated", broken)
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
        respond(
            request,
            stream,
            [tensor_from_numpy("OUT", request.inputs[0].as_numpy())],
            is_final=False,
        )
        stream.close()

    core.models["id_fp32"].compute = compute
    async with connected(core) as (_, client):
        for n in range(3):
            reply = await talk(client, ask_binary(floats(n, 2)))
            assert (reply.status, reply.body[-8:]) == (200, floats(n, 2))
        assert core.num_validated == 2


@on_uvloop
async def test_a_compressed_request_is_no_pattern_for_one_that_is_not() -> None:
    """Lengths in its head are of the compressed bytes: here, of all of the JSON and too few bytes
    of the tensor."""
    async with connected() as (server, client):
        head, end, body = ask_binary(bytes(4000)).partition(b"\r\n\r\n")
        text = body[:-4000]
        length = len(text) + 3
        head = (
            head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % length)
            + b"\r\nContent-Encoding: gzip"
            + end
        )
        reply = await talk(client, head + _gzip(body, length))
        assert (reply.status, reply.body[-4000:]) == (200, bytes(4000))
        reply = await talk(client, head + text + b"abc")
        assert reply.status == 400
        assert server.core.num_validated == 0


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
            assert (await talk(client, ask_binary(floats(1, 2), headers=header))).status == 200
        assert server.core.num_validated == 0


@on_uvloop
async def test_empty_lines_before_it_are_not_the_beginning_of_a_request() -> None:
    """They do not count against the time that it may take to receive one."""
    async with connected() as (server, client):
        await talk(client, ask_binary(floats(1, 2)))
        [connection] = server.frontend.endpoint.connections
        client.send(b"\r\n")
        while not connection._pending:
            await asyncio.sleep(0)
        client.send(b"\r\n")
        while connection._pending:
            await asyncio.sleep(0)
        assert (await talk(client, ask_binary(floats(1, 2)))).status == 200
        limits, endpoint = server.frontend.endpoint.limits, server.frontend.endpoint
        connection.check_deadlines(endpoint.now_s + limits.receive_timeout_s + 1)
        assert (await talk(client, ask_binary(floats(1, 2)))).status == 200
        assert server.core.num_validated == 2
