"""The end of a drain: every request that has not ended gets an error with words, and its work is
cancelled."""

from __future__ import annotations

import json

import numpy as np
import pytest

from naiad.core.tensor import tensor_from_numpy
from tests.fakes.language import piece, say
from tests.fakes.model import respond
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_rig import language_server, serving
from tests.wire.test_http_disconnect import PLACES

STOPPING = "the server is shutting down"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("path", "body"), PLACES.values(), ids=PLACES)
@on_uvloop
async def test_a_request_without_a_response_gets_503(path: str, body: bytes) -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", path, body)
        held = await server.core.next_held()
        await server.frontend.stop(0.0)
        reply = await client.read()
        assert (reply.status, reply.error()) == (503, STOPPING)
        assert reply.headers["Connection"] == "close"
        assert held.is_cancelled
        await client.close()


@on_uvloop
async def test_a_stream_that_has_begun_ends_with_an_error_event() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":1}')
        held = await server.core.next_held()
        output = tensor_from_numpy("OUT", np.array([1], np.float32))
        respond(held.request, held.stream, [output], is_final=False)
        head = await client.read_head()
        assert head.headers["X-Accel-Buffering"] == "no"
        assert head.headers["Cache-Control"] == "no-cache"
        assert json.loads((await client.read_chunk()).removeprefix(b"data: "))["OUT"] == 1
        await server.frontend.stop(0.0)
        event = json.loads((await client.read_chunk()).removeprefix(b"data: "))
        assert event == {"error": STOPPING}
        assert await client.read_chunk() == b""
        assert held.is_cancelled
        await client.close()


@on_uvloop
async def test_openais_routes_say_it_in_their_own_form() -> None:
    async with language_server() as (core, server):
        waiting, streaming = await Client.connect(server.port), await Client.connect(server.port)
        waiting.request("POST", "/v1/chat/completions", json.dumps(CHAT).encode())
        await core.next_call()
        streaming.request(
            "POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode()
        )
        _, held = await core.next_call()
        say(held, piece("a"), is_final=False)
        head = await streaming.read_head()
        assert head.headers["X-Accel-Buffering"] == "no"
        assert b"data: " in await streaming.read_chunk()
        await server.frontend.stop(0.0)
        reply = await waiting.read()
        assert (reply.status, reply.json()["error"]["message"]) == (503, STOPPING)
        chunk = b""
        while more := await streaming.read_chunk():
            chunk = more
        assert STOPPING.encode() in chunk
        for client in (waiting, streaming):
            await client.close()
