"""Requests that repeat the last one of their connection, binary and JSON, when a client, a model or
the server goes away or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from naiad.core.tensor import tensor_from_numpy
from naiad.errors import unavailable
from tests.fakes.model import respond
from tests.wire.fast_path_http_conversation import ask_binary, ask_json, connected, floats, talk
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import serving

Ask = Callable[[float, str], bytes]
"""(the first of two numbers, model) -> a whole request."""
ASKS: dict[str, Ask] = {
    "binary": lambda value, model: ask_binary(floats(value, 2), model=model),
    "JSON": lambda value, model: ask_json(f"[{value},2]", model=model),
}
both_formats = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)


def first_number(reply: Reply) -> float:
    if reply.headers["Content-Type"] == "application/json":
        return float(reply.json()["outputs"][0]["data"][0])
    return float(np.frombuffer(reply.body[-8:], np.float32)[0])


@both_formats
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@on_uvloop
async def test_a_client_that_goes_away_cancels(ask: Ask, how: str) -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.send(ask(1, "held"))
        held = await server.core.next_held()
        respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([1], np.float32))])
        await client.read()
        client.send(ask(300, "held"))
        held = await server.core.next_held()
        assert server.core.num_validated == 1
        await client.hang_up(how)
        await server.core.on_cancelled.wait()
        assert held.is_cancelled
        await client.close()


@both_formats
@on_uvloop
async def test_errors_of_the_model_and_of_the_queue(ask: Ask) -> None:
    async with connected() as (server, client):
        for n, outcome in enumerate(("good", "error", "good", "empty", "late", "good")):
            client.send(ask(n * 50, "held"))
            held = await server.core.next_held()
            if outcome == "error":
                held.stream.fail(unavailable("not now", 3))
            elif outcome == "empty":
                held.stream.close()
            else:
                output = tensor_from_numpy("OUT", held.request.inputs[0].as_numpy())
                respond(held.request, held.stream, [output], is_final=outcome == "good")
                if outcome == "late":
                    held.stream.close()
            reply = await client.read()
            assert reply.status == {"good": 200, "late": 200, "error": 503, "empty": 500}[outcome]
            if reply.status == 200:
                assert first_number(reply) == n * 50
        assert server.core.num_validated == 5
        server.core.refusal = unavailable("Exceeds maximum queue size", 1)
        reply = await talk(client, ask(1, "held"))
        assert (reply.status, reply.headers["Retry-After"], reply.error()) == (
            503,
            "1",
            "Exceeds maximum queue size",
        )


@both_formats
@on_uvloop
async def test_plans_go_with_their_model(ask: Ask) -> None:
    async with connected() as (server, client):
        plans = server.frontend.plans
        assert plans is not None
        for n in range(3):
            await talk(client, ask(n, "id_fp32"))
        assert (len(plans.cache), server.core.num_validated) == (1, 2)
        old = server.core.models["id_fp32"]
        server.core.models["id_fp32"] = type(old)(msgspec.structs.replace(old.spec), old.compute)
        for callback in old.on_stopped:
            callback()
        assert len(plans.cache) == 0
        for n in range(3):
            assert first_number(await talk(client, ask(n, "id_fp32"))) == n
        assert (len(plans.cache), server.core.num_validated) == (1, 4)


@both_formats
@on_uvloop
async def test_a_model_that_has_been_replaced_or_is_gone(ask: Ask) -> None:
    async with connected() as (server, client):
        for n in range(2):
            await talk(client, ask(n, "id_fp32"))
        model = server.core.models["id_fp32"]
        server.core.models["id_fp32"] = type(model)(
            msgspec.structs.replace(model.spec), model.compute
        )
        for n in range(2):
            await talk(client, ask(n, "id_fp32"))
            assert server.core.num_validated == 1 + n
        del server.core.models["id_fp32"]
        reply = await talk(client, ask(1, "id_fp32"))
        assert (reply.status, reply.error()) == (
            404,
            "Request for unknown model: 'id_fp32' is not found",
        )


@both_formats
@on_uvloop
async def test_a_server_that_stops_answers_and_closes(ask: Ask) -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        for is_last in (False, True):
            client.send(ask(1, "held"))
            held = await server.core.next_held()
            if is_last:
                stopping = asyncio.create_task(server.frontend.stop(5.0))
                await asyncio.sleep(0)
            respond(
                held.request, held.stream, [tensor_from_numpy("OUT", np.array([1, 2], np.float32))]
            )
            reply = await client.read()
            assert reply.status == 200
        assert reply.headers["Connection"] == "close"
        assert await client.is_closed_by_server()
        await stopping
        await client.close()
