"""Requests in JSON that repeat the last one of their connection but for their numbers: the fast
path gives the bytes that the full path gives, which handles everything unusual."""

from __future__ import annotations

import asyncio
import gzip
import re

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.tensor import tensor_from_numpy
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from tests.fakes import FakeTransport
from tests.fakes.core import FakeCore
from tests.fakes.model import respond
from tests.wire.fast_path_http_conversation import (
    FAST,
    FULL,
    JSON,
    ask_json,
    check_both_paths,
    connected,
    talk,
)
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import HttpServer, serving


async def exchange_bytes(client: Client, request: bytes) -> bytes:
    client.send(request)
    head = await client.reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: ([0-9]+)", head)
    assert length is not None
    return head + await client.reader.readexactly(int(length[1]))


@pytest.mark.parametrize("requests", JSON.values(), ids=JSON)
def test_both_paths_give_the_same_bytes(requests: list[bytes]) -> None:
    async def converse(server: HttpServer, client: Client) -> list[bytes]:
        return [await exchange_bytes(client, request) for request in requests]

    check_both_paths(converse, len(requests))


@on_uvloop
async def test_the_fast_path_is_used() -> None:
    async with connected() as (server, client):
        for n in range(5):
            reply = await talk(client, ask_json(f"[{10**n},2.5]"))
            assert reply.json()["outputs"][0]["data"] == [10**n, 2.5]
        assert server.core.num_validated == 4
        for n in range(3):
            await talk(client, ask_json(f"[[{n},1],[2,3]]", model="id_2d", shape="[2,2]"))
        assert server.core.num_validated == 4 + 2
        for id in ("1", "22", "x"):
            reply = await talk(client, ask_json("[1,2]", start=f'"id":"{id}",'))
            assert reply.json()["id"] == id
        assert server.core.num_validated == 4 + 2 + 2


@on_uvloop
async def test_a_new_connection_knows_the_form() -> None:
    async with serving() as server:
        for n in range(3):
            client = await Client.connect(server.port)
            reply = await talk(client, ask_json(f"[{n},2]"))
            assert reply.json()["outputs"][0]["data"] == [n, 2]
            await client.close()


@on_uvloop
async def test_what_is_too_large_is_refused() -> None:
    """Also when it repeats one that was not."""
    async with serving(HttpOptions(max_input_size=80)) as server:
        client = await Client.connect(server.port)
        for spaces in (0, 1):
            assert (await talk(client, ask_json(f"[1,2{' ' * spaces}]"))).status == 200
        assert server.core.num_validated == 1
        reply = await talk(client, ask_json(f"[1,2{' ' * 20}]"))
        assert (reply.status, "exceeds the maximum allowed input size" in reply.error()) == (
            400,
            True,
        )
        assert server.core.num_validated == 1
        await client.close()


@on_uvloop
async def test_pipelined_and_in_pieces() -> None:
    async with connected() as (_, client):
        await talk(client, ask_json("[0,0]"))
        client.send(b"".join(ask_json(f"[{n},1]") for n in range(4)))
        assert [(await client.read()).json()["outputs"][0]["data"] for _ in range(4)] == [
            [n, 1] for n in range(4)
        ]
        whole = ask_json("[8,9]")
        for at in (10, 60, len(whole) - 3):
            client.send(whole[:at])
            await asyncio.sleep(0)
            client.send(whole[at:])
            assert (await client.read()).json()["outputs"][0]["data"] == [8, 9]


@on_uvloop
async def test_forwarded_headers_and_traces_are_not_lost() -> None:
    async with serving(HttpOptions(header_forward_pattern="x-.*")) as server:
        client = await Client.connect(server.port)
        for n in range(3):
            client.send(ask_json(f"[{n},2]", model="held", headers="x-a: b\r\n"))
            held = await server.core.next_held()
            assert held.request.parameters == {"x-a": "b"}
            respond(
                held.request, held.stream, [tensor_from_numpy("OUT", np.array([1, 2], np.float32))]
            )
            await client.read()
        assert server.core.num_validated == 0
        await client.close()


@on_uvloop
async def test_a_compressed_request_is_no_pattern_for_one_that_is_not() -> None:
    async with connected() as (server, client):
        packed = gzip.compress(ask_json("[1,2]").partition(b"\r\n\r\n")[2])
        head = (
            b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nContent-Encoding: "
            b"gzip\r\nContent-Length: %d\r\n\r\n"
        )
        for _ in range(2):
            assert (await talk(client, head % len(packed) + packed)).status == 200
        plain = ask_json("[3,4]").partition(b"\r\n\r\n")[2]
        assert len(str(len(plain))) == len(str(len(packed)))
        assert (await talk(client, head % len(plain) + plain)).status == 400
        assert server.core.num_validated == 0


# Any bytes at all.


async def written(requests: list[bytes], options: HttpOptions) -> tuple[list[bytes], bool, int]:
    """What a server without sockets writes after each read."""
    frontend = HttpFrontend(FakeCore(), options)
    connection, transport = frontend.protocol_factory(), FakeTransport()
    connection.connection_made(transport)
    answers: list[bytes] = []
    for request in requests:
        if transport.is_closed or transport.has_eof:
            break
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(request))
        buffer[:size] = request[:size]
        connection.buffer_updated(size)
        await asyncio.sleep(0)
        answers.append(transport.take())
    is_closed, num_requests = transport.is_closed, frontend.num_requests
    connection.connection_lost(None)
    return answers, is_closed, num_requests


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    requests: list[bytes] = []
    for _ in range(draw(st.integers(2, 6))):
        numbers = draw(
            st.lists(
                st.sampled_from(["1", "-2", "0.5", "1e3", "1e40", "12345678", "x"]),
                min_size=2,
                max_size=2,
            )
        )
        if draw(st.booleans()):
            numbers = ["1", "2"]
        start = draw(st.sampled_from(["", "", '"id":"7",', '"id":"89",']))
        request = ask_json(f"[{','.join(numbers)}]", start=start)
        if draw(st.integers(0, 2)) == 0:
            at, width = draw(st.integers(0, len(request))), draw(st.integers(0, 3))
            request = (
                request[:at]
                + draw(st.sampled_from([b"", b"1", b"]", b"}", b" ", b"\r\n", b'"', b"\0", b"G"]))
                + request[at + width :]
            )
        requests.append(request)
    return requests


@given(conversations())
def test_any_conversation_goes_the_same_way(requests: list[bytes]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(written(requests, FAST)) == runner.run(written(requests, FULL))
