"""Streams of stock tritonclient: decoupled models, several responses per request, and errors within
a stream."""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as aio_client

from tests.server.client_data import ROW, add_sub_inputs, is_same, number_input, text_input
from tests.server.harness import Endpoints

Responses = queue.SimpleQueue[tuple[Any, Any]]


@pytest.fixture
def client(main_server: Endpoints) -> Iterator[Any]:
    with grpc_client.InferenceServerClient(main_server.grpc) as one:
        yield one


@pytest.fixture
def responses(client: Any) -> Iterator[Responses]:
    received: Responses = queue.SimpleQueue()
    client.start_stream(callback=lambda result, error: received.put((result, error)))
    yield received
    client.stop_stream()


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def receive(responses: Responses, count: int) -> list[tuple[Any, Any]]:
    return [responses.get(timeout=30) for _ in range(count)]


def test_a_decoupled_model_sends_several_responses(client: Any, responses: Responses) -> None:
    client.async_stream_infer(
        "repeat",
        [number_input(grpc_client, "COUNT", 3)],
        request_id="r",
        enable_empty_final_response=True,
    )
    received = receive(responses, 4)
    assert [int(result.as_numpy("INDEX")[0]) for result, _ in received[:3]] == [0, 1, 2]
    assert [is_final(result) for result, _ in received] == [False, False, False, True]
    assert {result.get_response().id for result, _ in received} == {"r"}


def test_a_decoupled_model_sends_no_response(client: Any, responses: Responses) -> None:
    client.async_stream_infer(
        "repeat", [number_input(grpc_client, "COUNT", 0)], enable_empty_final_response=True
    )
    ((result, error),) = receive(responses, 1)
    assert error is None
    assert is_final(result)
    assert not result.get_response().outputs


def test_a_decoupled_model_responds_from_a_thread(client: Any, responses: Responses) -> None:
    client.async_stream_infer(
        "repeat", [number_input(grpc_client, "COUNT", 50)], parameters={"thread": True}
    )
    assert [int(result.as_numpy("INDEX")[0]) for result, _ in receive(responses, 50)] == list(
        range(50)
    )


def test_an_error_does_not_end_the_stream(client: Any, responses: Responses) -> None:
    client.async_stream_infer(
        "repeat", [number_input(grpc_client, "COUNT", 3)], parameters={"fail_at": 1}
    )
    received = receive(responses, 3)
    assert "response 1 fails" in str(received[1][1])
    assert int(received[2][0].as_numpy("INDEX")[0]) == 2
    client.async_stream_infer("nowhere", [], request_id="u")
    assert "is not found" in str(receive(responses, 1)[0][1])
    client.async_stream_infer("add_sub", add_sub_inputs(grpc_client))
    assert is_same(receive(responses, 1)[0][0].as_numpy("OUTPUT0"), ROW + ROW)


def test_models_that_are_not_decoupled_respond_in_order(client: Any, responses: Responses) -> None:
    for number in range(40):
        client.async_stream_infer(
            "add_sub", add_sub_inputs(grpc_client, ROW * number), request_id=str(number)
        )
    received = receive(responses, 40)
    assert [result.get_response().id for result, _ in received] == [
        str(number) for number in range(40)
    ]
    assert all(is_final(result) for result, _ in received)


def test_models_share_a_stream(client: Any, responses: Responses) -> None:
    client.async_stream_infer(
        "repeat", [number_input(grpc_client, "COUNT", 5)], request_id="repeat"
    )
    client.async_stream_infer(
        "words", [text_input(grpc_client, "text_input", "one two three")], request_id="words"
    )
    client.async_stream_infer("add_sub", add_sub_inputs(grpc_client), request_id="add_sub")
    ids = [result.get_response().id for result, _ in receive(responses, 9)]
    assert sorted(ids) == ["add_sub"] + ["repeat"] * 5 + ["words"] * 3


def test_the_client_cancels_a_stream(client: Any, main_server: Endpoints) -> None:
    received: Responses = queue.SimpleQueue()
    client.start_stream(callback=lambda result, error: received.put((result, error)))
    client.async_stream_infer("repeat", [number_input(grpc_client, "COUNT", 1)])
    receive(received, 1)
    client.stop_stream(cancel_requests=True)
    assert client.is_server_ready()


async def test_a_stream_with_asyncio(main_server: Endpoints) -> None:
    """The stream ends when the client has no more requests and all responses have been sent."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for count in (2, 0, 1):
            yield {
                "model_name": "repeat",
                "inputs": [number_input(aio_client, "COUNT", count)],
                "request_id": str(count),
            }

    seen: list[tuple[str, int]] = []
    async with aio_client.InferenceServerClient(main_server.grpc) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            seen.append((result.get_response().id, int(result.as_numpy("INDEX")[0])))
    assert sorted(seen) == [("1", 0), ("2", 0), ("2", 1)]
