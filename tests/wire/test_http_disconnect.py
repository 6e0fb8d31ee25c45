"""Clients that go away, on the production event loop: their requests are cancelled at once."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from naiad.core.tensor import tensor_from_numpy
from tests.fakes.model import respond
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import HttpServer, serving

BODY = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
).encode()
PLACES = {
    "infer": ("/v2/models/held/infer", BODY),
    "flat infer": ("/v2/models/held/infer", b'{"IN":1}'),
    "generate": ("/v2/models/held_stream/generate", b'{"IN":1}'),
    "stream": ("/v2/models/held_stream/generate_stream", b'{"IN":1}'),
}


async def no_connections(server: HttpServer) -> None:
    while server.frontend.num_connections:
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(("path", "body"), PLACES.values(), ids=PLACES)
@on_uvloop
async def test_a_client_leaves_while_its_response_is_pending(
    path: str, body: bytes, how: str
) -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", path, body)
        held = await server.core.next_held()
        await client.hang_up(how)
        await server.core.on_cancelled.wait()
        assert held.is_cancelled
        await no_connections(server)
        await client.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@on_uvloop
async def test_a_client_leaves_in_the_middle_of_a_stream(how: str) -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":1}')
        held = await server.core.next_held()
        respond(
            held.request,
            held.stream,
            [tensor_from_numpy("OUT", np.array([1], np.float32))],
            is_final=False,
        )
        await client.read_head()
        await client.read_chunk()
        await client.hang_up(how)
        await server.core.on_cancelled.wait()
        assert held.is_cancelled


@on_uvloop
async def test_all_pipelined_requests_are_cancelled() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        for _ in range(5):
            client.request("POST", "/v2/models/held/infer", BODY)
        held = [await server.core.next_held() for _ in range(5)]
        await client.close()
        await no_connections(server)
        assert all(each.is_cancelled for each in held)


@on_uvloop
async def test_other_connections_are_not_disturbed() -> None:
    async with serving() as server:
        staying, leaving = await Client.connect(server.port), await Client.connect(server.port)
        staying.request("POST", "/v2/models/held/infer", BODY)
        kept = await server.core.next_held()
        leaving.request("POST", "/v2/models/held/infer", BODY)
        lost = await server.core.next_held()
        leaving.reset()
        await server.core.on_cancelled.wait()
        assert (kept.is_cancelled, lost.is_cancelled) == (False, True)
        respond(kept.request, kept.stream, [tensor_from_numpy("OUT", np.array([1], np.float32))])
        assert (await staying.read()).status == 200
        await staying.close()


@on_uvloop
async def test_a_client_leaves_in_the_middle_of_an_upload() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        while server.frontend.endpoint.num_connections == 0:
            await asyncio.sleep(0)
        client.send(
            b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
            + bytes(300_000)
        )
        await client.writer.drain()
        await client.close()
        await no_connections(server)
        assert server.frontend.num_requests == 0


@on_uvloop
async def test_a_graceful_stop_finishes_requests_in_work() -> None:
    async with serving() as server:
        busy, idle = await Client.connect(server.port), await Client.connect(server.port)
        assert (await idle.call("GET", "/v2/health/live")).status == 200
        busy.request("POST", "/v2/models/held/infer", BODY)
        held = await server.core.next_held()
        server.listener.close()
        stopping = asyncio.ensure_future(server.frontend.stop(30.0))
        assert await idle.is_closed_by_server()
        respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([1], np.float32))])
        reply = await busy.read()
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert await busy.is_closed_by_server()
        await stopping
        await busy.close()
        await idle.close()


@on_uvloop
async def test_a_stop_cancels_the_rest_after_its_grace() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held/infer", BODY)
        held = await server.core.next_held()
        server.listener.close()
        await server.frontend.stop(0.0)
        assert held.is_cancelled
        assert server.frontend.num_connections == 0
        await client.close()
