"""Repeated requests whose head is read before their body is there: the same answers, by the fast
path, and the same limits."""

from __future__ import annotations

import asyncio

import pytest

from naiad.transport.http1.connection import Http1Connection
from tests.wire.fast_path_http_conversation import (
    BINARY,
    JSON,
    ask_binary,
    ask_json,
    check_both_paths,
    connected,
    floats,
    talk,
)
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import HttpServer

CONVERSATIONS = {**BINARY, **{f"JSON, {name}": requests for name, requests in JSON.items()}}


def the_connection(server: HttpServer) -> Http1Connection:
    [connection] = server.frontend.endpoint.connections
    return connection


async def talk_in_pieces(server: HttpServer, client: Client, request: bytes, *sizes: int) -> Reply:
    """The server has read each piece before the next one is sent."""
    connection = the_connection(server)
    start = 0
    for size in sizes:
        last_bytes = _received(connection)
        client.send(request[start : start + size])
        start += size
        while _received(connection) == last_bytes:
            await asyncio.sleep(0)
    client.send(request[start:])
    return await client.read()


def _received(connection: Http1Connection) -> int:
    return len(connection._pending) + connection._received_bytes


def head_size(request: bytes) -> int:
    return request.index(b"\r\n\r\n") + 4


@pytest.mark.parametrize("requests", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_both_paths_give_the_same(requests: list[bytes]) -> None:
    async def converse(server: HttpServer, client: Client) -> list[Reply]:
        await talk(client, requests[0])
        return [
            await talk_in_pieces(server, client, request, head_size(request))
            for request in requests
        ]

    check_both_paths(converse, 1 + len(requests))


@on_uvloop
async def test_the_fast_path_is_used() -> None:
    async with connected() as (server, client):
        await talk(client, ask_binary(floats(0, 2)))
        for n in range(1, 4):
            request = ask_binary(floats(n, 2))
            assert (
                await talk_in_pieces(server, client, request, head_size(request))
            ).body.endswith(floats(n, 2))
        assert server.core.num_validated == 3
        await talk(client, ask_json("[1,2]"))
        for data in ("[3,4]", "[5.5,6]"):
            request = ask_json(data)
            assert (await talk_in_pieces(server, client, request, head_size(request))).status == 200
        assert server.core.num_validated == 5


@pytest.mark.parametrize("sizes", [(10,), (10, 20, 30), (1, 1), (-9,), (-1,)], ids=str)
@on_uvloop
async def test_other_pieces(sizes: tuple[int, ...]) -> None:
    """Also in the midst of the head, and of the body (counted from the end)."""
    async with connected() as (server, client):
        await talk(client, ask_binary(floats(0, 2)))
        for n in range(1, 4):
            request = ask_binary(floats(n, 2))
            cut = [size if size > 0 else len(request) + size for size in sizes]
            assert (await talk_in_pieces(server, client, request, *cut)).body.endswith(floats(n, 2))


@on_uvloop
async def test_more_than_the_body_follows() -> None:
    async with connected() as (server, client):
        await talk(client, ask_binary(floats(0, 2)))
        first, second = ask_binary(floats(1, 2)), ask_binary(floats(3, 4))
        reply = await talk_in_pieces(server, client, first + second, head_size(first))
        assert [reply.body[-8:], (await client.read()).body[-8:]] == [floats(1, 2), floats(3, 4)]


@on_uvloop
async def test_a_client_that_asks_whether_to_go_on_is_told_so() -> None:
    async with connected() as (_, client):
        request = ask_binary(floats(1, 2), headers="Expect: 100-continue\r\n")
        for _ in range(3):
            client.send(request[: head_size(request)])
            assert (await client.read_head()).status == 100
            client.send(request[head_size(request) :])
            assert (await client.read()).body.endswith(floats(1, 2))


@pytest.mark.parametrize(
    "request_bytes", [ask_binary(floats(1, 2)), ask_json("[1,2]")], ids=["binary", "JSON"]
)
@on_uvloop
async def test_a_body_that_does_not_come(request_bytes: bytes) -> None:
    """The time that a request may take is counted from its first byte, however it comes."""
    async with connected() as (server, client):
        await talk(client, request_bytes)
        connection, endpoint = the_connection(server), server.frontend.endpoint
        client.send(request_bytes[: head_size(request_bytes)])
        while not connection._pending:
            await asyncio.sleep(0)
        began_s = connection._since_s
        connection.check_deadlines(began_s + endpoint.limits.receive_timeout_s)
        client.send(request_bytes[head_size(request_bytes) : -1])
        while connection._pending:
            await asyncio.sleep(0)
        assert connection._since_s == began_s
        connection.check_deadlines(began_s + endpoint.limits.receive_timeout_s + 60)
        assert (await client.read()).status == 408


@on_uvloop
async def test_a_client_that_leaves_after_the_head() -> None:
    async with connected() as (server, client):
        request = ask_binary(floats(1, 2))
        await talk(client, request)
        connection = the_connection(server)
        client.send(request[: head_size(request)])
        while not connection._pending:
            await asyncio.sleep(0)
        client.reset()
        while server.frontend.endpoint.connections:
            await asyncio.sleep(0)
        assert server.core.num_validated == 0


@on_uvloop
async def test_a_traced_request_began_with_its_first_byte() -> None:
    """The body of a traced request is received the full path, which notes that time."""
    async with connected() as (server, client):
        request = ask_binary(floats(1, 2))
        await talk(client, request)
        server.core.tracing.is_on = True
        client.send(request[: head_size(request)])
        while the_connection(server)._body is None:
            await asyncio.sleep(0)
        client.send(request[head_size(request) :])
        assert (await client.read()).status == 200
