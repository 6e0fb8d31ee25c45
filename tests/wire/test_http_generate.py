"""POST /generate and /generate_stream over a socket."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from naiad import log
from naiad.core.tensor import tensor_from_numpy
from naiad.errors import Code, NaiadError
from naiad.frontends.http.options import HttpOptions
from naiad.transport.http1.limits import Http1Limits
from tests.fakes.model import respond
from tests.wire.http_client import Client, Reply, call, on_uvloop
from tests.wire.http_rig import serving

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


async def generate(
    port: int,
    model: str,
    body: Any,
    *,
    is_stream: bool = False,
    headers: dict[str, str] | None = None,
) -> Reply:
    return await call(
        port, "POST", f"/v2/models/{model}/generate{'_stream' if is_stream else ''}", body, headers
    )


def events(reply: Reply) -> list[Any]:
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    parts = reply.body.split(b"\n\n")
    assert parts.pop() == b""
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


@on_uvloop
async def test_a_flat_body_gets_a_flat_response() -> None:
    async with serving() as server:
        reply = await generate(
            server.port, "gen", {"text_input": "hi", "max_tokens": 5, "temperature": 0.5, "id": "7"}
        )
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
        document = reply.json()
        assert list(document) == ["id", "model_name", "model_version", "OUT"]
        inputs, parameters, request_id, *_ = ast.literal_eval(document["OUT"])
        assert inputs == {"text_input": [[1, 1], [[b"hi"]]], "max_tokens": [[1, 1], [[5]]]}
        assert (parameters, request_id) == ({"temperature": 0.5}, "7")


@pytest.mark.parametrize(
    ("values", "status", "body"),
    [
        ([2], 200, {"model_name": "rep", "model_version": "1", "OUT": 2, "TXT": ["x", "x"]}),
        ([1], 200, {"model_name": "rep", "model_version": "1", "OUT": 1, "TXT": "x"}),
        ([1, 2], 400, {"error": NOT_ONE}),
        ([], 400, {"error": NOT_ONE}),
        ([-1], 503, {"error": "neg -1"}),
    ],
)
@on_uvloop
async def test_generate_needs_exactly_one_response(
    values: list[int], status: int, body: Any
) -> None:
    async with serving() as server:
        reply = await generate(server.port, "rep", {"IN": values})
        assert (reply.status, reply.json()) == (status, body)


@pytest.mark.parametrize(
    ("values", "status", "expected"),
    [
        ([2], 200, [{"model_name": "rep", "model_version": "1", "OUT": 2, "TXT": ["x", "x"]}]),
        ([], 200, []),
        ([-1], 503, [{"error": "neg -1"}]),
        (
            [1, -1, 0],
            200,
            [
                {"model_name": "rep", "model_version": "1", "OUT": 1, "TXT": "x"},
                {"error": "neg -1"},
                {"model_name": "rep", "model_version": "1", "OUT": 0, "TXT": []},
            ],
        ),
    ],
)
@on_uvloop
async def test_generate_stream_sends_an_event_per_response(
    values: list[int], status: int, expected: list[Any]
) -> None:
    async with serving() as server:
        reply = await generate(server.port, "rep", {"IN": values}, is_stream=True)
        assert (reply.status, events(reply)) == (status, expected)
        assert reply.headers.get("Retry-After") == ("2" if status == 503 else None)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "message"),
    [
        ("nope", {}, {}, 404, "Request for unknown model: 'nope' is not found"),
        (
            "gen",
            b"{bad",
            {},
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        (
            "gen",
            {},
            {},
            400,
            "[request id: <id_unknown>] expected number of inputs between 1 and 5 but got 0 "
            "inputs for model 'gen'.",
        ),
        (
            "gen",
            {"text_input": "x"},
            {"Content-Encoding": "gzip"},
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
        (
            "gen",
            {"text_input": "x", "id": 1},
            {},
            500,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
    ],
)
@on_uvloop
async def test_requests_that_are_refused(
    is_stream: bool, model: str, body: Any, headers: dict[str, str], status: int, message: str
) -> None:
    async with serving() as server:
        reply = await generate(server.port, model, body, is_stream=is_stream, headers=headers)
        assert (reply.status, reply.headers["Content-Type"]) == (status, "application/json")
        assert reply.error().startswith(message)


@on_uvloop
async def test_events_are_sent_as_they_come() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":[1]}')
        held = await server.core.next_held()
        for number in range(3):
            respond(
                held.request,
                held.stream,
                [tensor_from_numpy("OUT", np.array([number], np.float32))],
                is_final=False,
            )
            if number == 0:
                assert (await client.read_head()).status == 200
            assert json.loads((await client.read_chunk()).removeprefix(b"data: "))["OUT"] == number
        held.stream.close()
        assert await client.read_chunk() == b""
        assert (await client.call("GET", "/v2/health/live")).status == 200, "the connection is kept"
        await client.close()


@on_uvloop
async def test_an_output_that_json_cannot_hold_is_an_error_event() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":[1]}')
        held = await server.core.next_held()
        respond(
            held.request,
            held.stream,
            [tensor_from_numpy("OUT", np.array([1], np.float32))],
            is_final=False,
        )
        respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([1], np.float16))])
        reply = await client.read()
        assert [list(event) for event in events(reply)] == [
            ["model_name", "model_version", "OUT"],
            ["error"],
        ]
        await client.close()


@on_uvloop
async def test_a_second_response_ends_generate_and_cancels_the_rest() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate", b'{"IN":[1]}')
        held = await server.core.next_held()
        for number in range(2):
            respond(
                held.request,
                held.stream,
                [tensor_from_numpy("OUT", np.array([number], np.float32))],
                is_final=False,
            )
        reply = await client.read()
        assert (reply.status, reply.error()) == (400, NOT_ONE)
        assert held.is_cancelled
        await client.close()


@on_uvloop
async def test_a_client_that_does_not_read_pauses_the_model_and_is_then_dropped() -> None:
    options = HttpOptions(limits=Http1Limits(max_stream_buffer_bytes=4_000_000))
    async with serving(options) as server:
        client = await Client.connect(server.port)
        transport: Any = client.writer.transport
        transport.pause_reading()
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":[1]}')
        held = await server.core.next_held()
        flow: list[bool] = []
        held.stream.on_flow(flow.append)
        response = [tensor_from_numpy("OUT", np.zeros(50_000, np.float32))]
        for _ in range(1000):
            respond(held.request, held.stream, response, is_final=False)
            if held.is_cancelled:
                break
        assert flow[:1] == [True]
        assert held.is_cancelled
        assert server.frontend.endpoint.num_slow_readers == 1
        client.reset()


@on_uvloop
async def test_an_error_of_the_producer_is_the_last_event() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        client.request("POST", "/v2/models/held_stream/generate_stream", b'{"IN":[1]}')
        held = await server.core.next_held()
        respond(
            held.request,
            held.stream,
            [tensor_from_numpy("OUT", np.array([1], np.float32))],
            is_final=False,
        )
        held.stream.fail(NaiadError(Code.INTERNAL, "the worker died"))
        reply = await client.read()
        assert (reply.status, events(reply)[-1]) == (200, {"error": "the worker died"})
        await client.close()


# ORCA load reports. The texts are those of Triton's orca_http.cc.

REPORT = "endpoint-load-metrics"
TEXT = "TEXT named_metrics.kv_cache_utilization=0.428571, named_metrics.max_token_capacity=448"
JSON = (
    'JSON {"named_metrics":{"kv_cache_utilization":0.42857142857142855,"max_token_capacity":448}}'
)


def blocks(model: str, used: float = 3, most: float = 7, per: float = 64) -> dict[str, float]:
    values = {"max": most, "used": used, "free": most - used, "tokens_per": per, "fraction": 0.5}
    return {
        f'kv_cache_block_type="{kind}",model="{model}",version="1"': value
        for kind, value in values.items()
    }


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(log, "error", lines.append)
    return lines


def gauges_of(values: dict[str, float]) -> Callable[[str], dict[str, float]]:
    return lambda family: values if family == "nv_trt_llm_kv_cache_block_metrics" else {}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "expected", "message"),
    [
        ("text", TEXT, None),
        ("json", JSON, None),
        ("TEXT", None, "orca_type is set to an invalid type: TEXT"),
        ("http", None, "extracted_kv_metrics is empty, no header written. orca_type=http"),
        (None, None, None),
    ],
)
@on_uvloop
async def test_load_report(
    is_stream: bool, asked: str | None, expected: str | None, message: str | None, logged: list[str]
) -> None:
    headers = {} if asked is None else {"Endpoint-Load-Metrics-Format": asked}
    async with serving(gauges=gauges_of(blocks("tensorrt_llm"))) as server:
        reply = await generate(
            server.port, "rep", {"IN": [1]}, is_stream=is_stream, headers=headers
        )
        assert (reply.status, reply.headers.get(REPORT)) == (200, expected)
        assert message is None or any(message in line for line in logged)


@pytest.mark.parametrize("is_stream", [False, True])
@on_uvloop
async def test_errors_have_a_load_report(is_stream: bool) -> None:
    """An error of the model has a load report; a request that never reached the model has none."""
    headers = {"endpoint-load-metrics-format": "text"}
    async with serving(gauges=gauges_of(blocks("tensorrt_llm"))) as server:
        failed = await generate(
            server.port, "rep", {"IN": [-1]}, is_stream=is_stream, headers=headers
        )
        assert (failed.status, failed.headers.get(REPORT), failed.headers.get("Retry-After")) == (
            503,
            TEXT,
            "2",
        )
        refused = await generate(server.port, "nope", {}, is_stream=is_stream, headers=headers)
        assert (refused.status, refused.headers.get(REPORT)) == (404, None)
        several = await generate(
            server.port, "rep", {"IN": [1, 1]}, is_stream=is_stream, headers=headers
        )
        assert (several.status, several.headers.get(REPORT)) == (200 if is_stream else 400, TEXT)


@on_uvloop
async def test_the_load_report_is_the_models_own_and_only_generate_has_it() -> None:
    headers = {"endpoint-load-metrics-format": "text"}
    async with serving(gauges=gauges_of({**blocks("rep", 0, 10, 16), **blocks("other")})) as server:
        reply = await generate(server.port, "rep", {"IN": [1]}, headers=headers)
        assert (
            reply.headers[REPORT] == "TEXT named_metrics.kv_cache_utilization=0.000000, "
            "named_metrics.max_token_capacity=160"
        )
        empty = await generate(server.port, "rep", {"IN": []}, is_stream=True, headers=headers)
        assert REPORT in empty.headers
        ready = await call(server.port, "GET", "/v2/models/rep", None, headers)
        assert (ready.status, ready.headers.get(REPORT)) == (200, None)


@pytest.mark.parametrize("values", [{}, {'kv_cache_block_type="used",model="m",version="1"': 3.0}])
@on_uvloop
async def test_no_load_report_without_all_of_its_gauges(
    values: dict[str, float], logged: list[str]
) -> None:
    async with serving(gauges=gauges_of(values)) as server:
        reply = await generate(
            server.port, "rep", {"IN": [1]}, headers={"endpoint-load-metrics-format": "json"}
        )
        assert (reply.status, reply.headers.get(REPORT)) == (200, None)
        assert logged[0] == "One or more of the kv metrics was not found or invalid."


# Flat bodies on /infer.


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"id": "7"}, {"id": "7"}),
        ({"request_id": "7"}, {"request_id": "7"}),
        ({"request_id": 7}, {"request_id": 7}),
        ({"id": "7", "request_id": "8"}, {"id": "7"}),
        ({}, {}),
    ],
)
@on_uvloop
async def test_a_flat_request_gets_its_id_as_it_sent_it(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", "/v2/models/gen/infer", {"text_input": "a", **sent})
        assert reply.status == 200, reply.body
        document = reply.json()
        assert {key: document[key] for key in ("id", "request_id") if key in document} == expected
        (request,) = server.core.requests
        assert request.id == str(next(iter(expected.values()), ""))


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (
            "add_sub",
            {},
            "The body has neither 'inputs' nor an input of model 'add_sub': 'INPUT0', 'INPUT1'",
        ),
        (
            "id_fp32",
            {"request_id": "x", "nested": {"IN": 1}},
            "The body has neither 'inputs' nor an input of model 'id_fp32': 'IN'",
        ),
        (
            "gen",
            {"prompt": "a", "max_token": 5},
            "The body has neither 'inputs' nor an input of model 'gen': 'text_input', "
            "'max_tokens', 'stream', 'temp', 'words'; did you mean 'text_input' instead of "
            "'prompt'?",
        ),
        (
            "repeat",
            {"COUNT": 1},
            "The body has neither 'inputs' nor an input of model 'repeat': 'IN'",
        ),
    ],
)
@on_uvloop
async def test_a_request_without_inputs_names_those_of_the_model(
    model: str, body: dict[str, Any], message: str
) -> None:
    async with serving() as server:
        reply = await call(server.port, "POST", f"/v2/models/{model}/infer", body)
        assert (reply.status, reply.error()) == (
            400,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'. "
            + message,
        )
