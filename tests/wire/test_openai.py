"""OpenAI's endpoints over a socket: exact bodies and events, what reaches the model, errors,
cancellation."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest

from naiad.errors import Code, NaiadError, invalid_arg, unavailable
from naiad.ipc.generation_call import GenerationCall, TokenLogprob
from tests.fakes.core import Held
from tests.fakes.language import LanguageCore, piece, say
from tests.fakes.model import FakeModel
from tests.wire.http_client import Client, Reply, call, on_uvloop
from tests.wire.http_rig import HttpServer, language_server

USER = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]


class Asked:
    """A request on its way, and the call that reached the model."""

    def __init__(self, reply: asyncio.Task[Reply], call: GenerationCall, held: Held) -> None:
        self.reply, self.call, self.held = reply, call, held


async def ask(
    core: LanguageCore, server: HttpServer, path: str = "chat/completions", **fields: Any
) -> Asked:
    body = {"model": "chat"} | ({"messages": USER} if path == "chat/completions" else {}) | fields
    reply = asyncio.create_task(call(server.port, "POST", f"/v1/{path}", body))
    held = asyncio.create_task(core.next_call())
    await asyncio.wait([reply, held], return_when=asyncio.FIRST_COMPLETED)
    assert held.done(), reply.result().body
    return Asked(reply, *held.result())


async def refused(
    server: HttpServer, path: str = "chat/completions", **fields: Any
) -> tuple[int, dict[str, Any]]:
    body = {"model": "chat"} | ({"messages": USER} if path == "chat/completions" else {}) | fields
    reply = await call(server.port, "POST", f"/v1/{path}", body)
    return reply.status, reply.json()["error"]


def events(reply: Reply) -> list[Any]:
    assert (reply.status, reply.headers["Content-Type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    parts = reply.body.split(b"\n\n")
    assert parts.pop() == b""
    assert parts.pop() == b"data: [DONE]"
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


@on_uvloop
async def test_the_list_of_models() -> None:
    async with language_server() as (_, server):
        reply = await call(server.port, "GET", "/v1/models")
        assert [card["id"] for card in reply.json()["data"]] == ["chat", "embed", "other", "whole"]
        card = (await call(server.port, "GET", "/v1/models/chat")).json()
        assert (card["id"], card["object"]) == ("chat", "model")
        for name in ("nope", "add_sub"):
            reply = await call(server.port, "GET", f"/v1/models/{name}")
            assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")


@on_uvloop
async def test_the_list_names_every_model_that_responds() -> None:
    async with language_server() as (core, server):
        reply = await call(server.port, "GET", "/v1/models")
        listed = {card["id"] for card in reply.json()["data"]}
        for name in core.models:
            answered = set()
            for path, fields in (
                ("chat/completions", {"messages": USER, "temperature": 3}),
                ("embeddings", {"input": []}),
            ):
                reply = await call(server.port, "POST", f"/v1/{path}", {"model": name} | fields)
                error = reply.json()["error"]
                answered.add(error["code"] != "model_not_supported" and error["param"] != "model")
            assert (name in listed) == any(answered), name


@on_uvloop
async def test_the_health_route_of_tritons_openai_frontend() -> None:
    async with language_server() as (core, server):
        assert (await call(server.port, "GET", "/health/ready")).status == 200
        core.is_draining = True
        reply = await call(server.port, "GET", "/health/ready")
        assert (reply.status, reply.json()) == (
            400,
            {"detail": "Attached inference engine is not ready for inference requests."},
        )
        assert (await call(server.port, "POST", "/health/ready")).status == 405


@pytest.mark.parametrize(
    ("path", "field", "value", "message"),
    [
        (
            "chat/completions",
            "temperature",
            2.1,
            "decimal above maximum value. Expected a value <= 2, but got 2.1 instead.",
        ),
        (
            "completions",
            "temperature",
            -0.5,
            "decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
        ),
        (
            "responses",
            "temperature",
            2.5,
            "decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
        ),
        (
            "chat/completions",
            "presence_penalty",
            2.25,
            "decimal above maximum value. Expected a value <= 2, but got 2.25 instead.",
        ),
        (
            "completions",
            "frequency_penalty",
            -2.25,
            "decimal below minimum value. Expected a value >= -2, but got -2.25 instead.",
        ),
        (
            "responses",
            "top_p",
            1.5,
            "decimal above maximum value. Expected a value <= 1, but got 1.5 instead.",
        ),
        (
            "completions",
            "logprobs",
            7,
            "integer above maximum value. Expected a value <= 5, but got 7 instead.",
        ),
        (
            "chat/completions",
            "top_logprobs",
            21,
            "integer above maximum value. Expected a value <= 20, but got 21 instead.",
        ),
        (
            "chat/completions",
            "n",
            129,
            "integer above maximum value. Expected a value <= 128, but got 129 instead.",
        ),
        (
            "chat/completions",
            "logit_bias",
            {"5": 100.5},
            "decimal above maximum value. Expected a value <= 100, but got 100.5 instead.",
        ),
    ],
)
@on_uvloop
async def test_values_beyond_the_documented_ranges(
    path: str, field: str, value: Any, message: str
) -> None:
    prompt = {"completions": {"prompt": "x"}, "responses": {"input": "x"}}.get(path, {})
    more = {"logprobs": True} if field == "top_logprobs" else {}
    async with language_server() as (_, server):
        status, error = await refused(server, path, **prompt, **more, **{field: value})
        kind, side = message.split()[:2]
        assert (status, error["message"], error["param"], error["code"]) == (
            400,
            f"Invalid '{field}': {message}",
            field,
            f"{kind}_{side}_{'max' if side == 'above' else 'min'}_value",
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2, "presence_penalty": -2, "frequency_penalty": 2, "top_p": 1},
        {"temperature": 0, "n": 128},
        {"logprobs": True, "top_logprobs": 20},
    ],
)
@on_uvloop
async def test_values_at_the_ends_of_the_ranges(fields: dict[str, Any]) -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, **fields)
        say(asked.held, piece("a", finish="stop"), is_final=True)
        assert (await asked.reply).status == 200


@on_uvloop
async def test_a_chat() -> None:
    async with language_server() as (core, server):
        asked = await ask(
            core,
            server,
            max_completion_tokens=5,
            max_tokens=9,
            stop="x",
            top_k=3,
            logit_bias={"5": -100},
            user="someone",
            unheard_of=None,
        )
        parameters = asked.call.parameters
        assert (
            parameters.max_tokens,
            parameters.stop,
            parameters.top_k,
            parameters.logit_bias,
        ) == (5, ["x"], 3, {5: -100.0})
        assert (asked.call.messages, asked.call.is_streamed) == (USER, False)
        say(asked.held, piece("Hello there", finish="stop"), is_final=True, num_cached=4)
        document = (await asked.reply).json()
        assert document.pop("id").startswith("chatcmpl-")
        assert document.pop("created") > 0
        assert document == {
            "object": "chat.completion",
            "model": "chat",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello there", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }


@on_uvloop
async def test_a_streamed_chat_with_usage() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, stream=True, stream_options={"include_usage": True}, n=2)
        assert (asked.call.is_streamed, asked.call.parameters.n) == (True, 2)
        say(asked.held, piece("A"), piece("B", 1))
        say(asked.held, piece("", 0))
        say(asked.held, piece("C", 0, "length"), num_output=3)
        say(asked.held, piece("", 1, "stop"), is_final=True, num_output=4)
        chunks = events(await asked.reply)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert [chunk["choices"][0] | {"logprobs": None} for chunk in chunks[:-1]] == [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            for index, delta, reason in [
                (0, {"role": "assistant", "content": ""}, None),
                (0, {"content": "A"}, None),
                (1, {"role": "assistant", "content": ""}, None),
                (1, {"content": "B"}, None),
                (0, {"content": "C"}, None),
                (0, {}, "length"),
                (1, {}, "stop"),
            ]
        ]
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 7
        assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 11)


@pytest.mark.parametrize(
    ("path", "fields"), [("chat/completions", {}), ("completions", {"prompt": "x"})]
)
@on_uvloop
async def test_every_chunk_has_usage_if_asked(path: str, fields: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with language_server() as (core, server):
        asked = await ask(core, server, path, stream=True, stream_options=options, **fields)
        say(asked.held, piece("A"))
        say(asked.held, piece("B", 0, "length"), is_final=True, num_output=2)
        counts = [chunk["usage"]["completion_tokens"] for chunk in events(await asked.reply)]
        assert counts == ([1, 1, 2, 2, 2] if path.startswith("chat") else [1, 2, 2])


@on_uvloop
async def test_a_model_that_is_not_decoupled_streams_everything_at_once() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, model="whole", stream=True)
        assert not asked.call.is_streamed
        say(asked.held, piece("All of it", finish="stop"), is_final=True)
        assert [
            chunk["choices"][0]["delta"].get("content") for chunk in events(await asked.reply)
        ] == ["", "All of it", None]


@on_uvloop
async def test_logprobs_of_chats_and_completions() -> None:
    top = [TokenLogprob(2, "\ufffd", b"\xe2", -0.5), TokenLogprob(3, "b", b"b", float("-inf"))]
    entries = [TokenLogprob(1, "ab", b"ab", -0.25, top)]
    async with language_server() as (core, server):
        asked = await ask(core, server, logprobs=True, top_logprobs=2)
        assert asked.call.parameters.logprobs == 2
        say(asked.held, piece("ab", finish="stop", logprobs=entries), is_final=True)
        content = (await asked.reply).json()["choices"][0]["logprobs"]["content"]
        assert content == [
            {
                "token": "ab",
                "logprob": -0.25,
                "bytes": [97, 98],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.5, "bytes": [226]},
                    {"token": "b", "logprob": -9999.0, "bytes": [98]},
                ],
            }
        ]
        asked = await ask(core, server, "completions", prompt="x", logprobs=2)
        say(asked.held, piece("ab", finish="stop", logprobs=entries * 2), is_final=True)
        assert (await asked.reply).json()["choices"][0]["logprobs"] == {
            "tokens": ["ab", "ab"],
            "token_logprobs": [-0.25, -0.25],
            "top_logprobs": [{"bytes:\\xe2": -0.5, "b": -9999.0, "ab": -0.25}] * 2,
            "text_offset": [0, 2],
        }


@on_uvloop
async def test_completions_of_several_prompts_end_in_any_order() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, "completions", prompt=["One", "Two"], echo=True)
        other_call, other = await core.next_call()
        assert (asked.call.prompt, other_call.prompt, other_call.parameters.max_tokens) == (
            "One",
            "Two",
            16,
        )
        say(other, piece(" two", finish="stop"), is_final=True)
        say(asked.held, piece(" one", finish="length"), is_final=True)
        document = (await asked.reply).json()
        assert [
            (choice["index"], choice["text"], choice["finish_reason"])
            for choice in document["choices"]
        ] == [
            (0, "One one", "length"),
            (1, "Two two", "stop"),
        ]
        assert document["usage"]["prompt_tokens"] == 14


@pytest.mark.parametrize(
    ("given", "expected"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("x", ["x"])]
)
@on_uvloop
async def test_prompts_as_tokens(given: Any, expected: list[Any]) -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, "completions", prompt=given, stream=True)
        calls = [(asked.call, asked.held)] + [await core.next_call() for _ in expected[1:]]
        assert [each.prompt for each, _ in calls] == expected
        for _, held in calls:
            say(held, piece("y", finish="stop"), is_final=True)
        assert [chunk["choices"][0]["text"] for chunk in events(await asked.reply)] == ["y"] * len(
            expected
        )


@on_uvloop
async def test_a_prompt_that_fails_cancels_the_others() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, "completions", prompt=["One", "Two"])
        _, other = await core.next_call()
        other.stream.fail(invalid_arg("the prompt is empty"))
        assert (await asked.reply).status == 400
        assert asked.held.is_cancelled


@on_uvloop
async def test_the_request_overrides_the_models_defaults() -> None:
    async with language_server() as (core, server):
        core.set_defaults("chat", '{"temperature": 0.25, "top_k": 4, "max_tokens": 3}')
        asked = await ask(core, server, temperature=0.5)
        parameters = asked.call.parameters
        assert (parameters.temperature, parameters.top_k, parameters.max_tokens) == (0.5, 4, 3)
        say(asked.held, piece("x", finish="stop"), is_final=True)
        await asked.reply


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"model": "nope"}, 404, "model", "The model 'nope' does not exist"),
        ({"model": "add_sub"}, 400, "model", "not a language model"),
        ({"model": 5}, 400, "model", "Invalid type for 'model': Expected str, got int."),
        ({"messages": []}, 400, "messages", "is empty"),
        ({"messages": "x"}, 400, "messages", "Expected array, got str"),
        ({"messages": [{"content": "x"}]}, 400, "messages[0].role", "Missing required parameter"),
        (
            {"messages": [{"role": "user", "content": 4}]},
            400,
            "messages[0].content",
            "Invalid type",
        ),
        ({"temperature": "hot"}, 400, "temperature", "Invalid type"),
        ({"stream_options": {}}, 400, "stream_options", "only allowed when 'stream'"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias", "token ids"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0]", "not a function"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, 400, "tool_choice", "Supported values"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            400,
            "tool_choice",
            "'sub' not found",
        ),
        ({"functions": []}, 400, "functions", "use 'tools'"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format", "schema"),
        (
            {"response_format": {"type": "text"}, "guided_regex": "a"},
            400,
            "guided_regex",
            "Only one of",
        ),
    ],
)
@on_uvloop
async def test_wrong_fields_of_a_chat(
    fields: dict[str, Any], status: int, param: str, message: str
) -> None:
    async with language_server() as (core, server):
        found, error = await refused(server, **fields)
        assert (found, error["param"], error["type"]) == (status, param, "invalid_request_error")
        assert message in error["message"]
        assert not core.held


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "could not parse the JSON body"),
        (b"[]", "Expected object"),
        (b"\xff", "could not parse"),
        (b"", "parse"),
    ],
)
@on_uvloop
async def test_bodies_that_are_no_objects(body: bytes, message: str) -> None:
    async with language_server() as (_, server):
        reply = await call(server.port, "POST", "/v1/chat/completions", body)
        assert reply.status == 400
        assert message in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        b'"seed": 100000000000000000000000000000',
        b'"messages": [{"role": "user", "content": "x", "extra": 100000000000000000000000000000}]',
        b'"messages": [{"role": "user", "content": "\\ud800"}]',
        b'"messages": [{"role": "user", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        b'"messages": [{"role": "user", "x": ' + b"[" * 900 + b"]" * 900 + b"}]",
        b'"temperature": 1e999',
        b'"n": 1000000',
        b'"max_tokens": 99999999999999999999999',
    ],
)
@on_uvloop
async def test_extreme_values_are_refused_or_reach_the_model(fields: bytes) -> None:
    async with language_server() as (core, server):
        body = b'{"model": "chat", "messages": [{"role": "user", "content": "x"}], ' + fields + b"}"
        reply = asyncio.create_task(call(server.port, "POST", "/v1/chat/completions", body))
        held = asyncio.create_task(core.next_call())
        await asyncio.wait([reply, held], return_when=asyncio.FIRST_COMPLETED)
        if held.done():
            held.result()[1].stream.fail(invalid_arg("no"))
        else:
            held.cancel()
        document = await reply
        assert (document.status, document.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("error", "status", "type", "code", "retry"),
    [
        (
            invalid_arg("temperature is 900, expected 0 to 100"),
            400,
            "invalid_request_error",
            None,
            None,
        ),
        (
            invalid_arg("the prompt has 9 tokens, the model's context is 8"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            None,
        ),
        (
            unavailable("too many requests wait", 3),
            429,
            "rate_limit_error",
            "rate_limit_exceeded",
            "3",
        ),
        (NaiadError(Code.INTERNAL, "broken"), 500, "server_error", None, None),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
@on_uvloop
async def test_errors_of_the_model(
    error: NaiadError, status: int, type: str, code: str | None, retry: str | None, is_stream: bool
) -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, stream=is_stream)
        asked.held.stream.fail(error)
        reply = await asked.reply
        found = reply.json()["error"]
        assert (reply.status, found["type"], found["code"], reply.headers.get("Retry-After")) == (
            status,
            type,
            code,
            retry,
        )
        if code == "context_length_exceeded":  # the sentence that litellm and others look for
            assert found["message"] == (
                "This model's maximum context length is 8 tokens. However, the prompt has 9 tokens."
            )
        else:
            assert found["message"] == error.message


@on_uvloop
async def test_an_error_after_the_first_chunk_is_an_event() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, stream=True)
        say(asked.held, piece("A"))
        asked.held.stream.fail(NaiadError(Code.INTERNAL, "broken"))
        reply = await asked.reply
        assert reply.status == 200
        last = json.loads(reply.body.split(b"\n\n")[-2].removeprefix(b"data: "))
        assert last == {
            "error": {"message": "broken", "type": "server_error", "param": None, "code": None}
        }


@on_uvloop
async def test_a_model_that_ends_without_a_response() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server)
        asked.held.stream.close()
        assert (await asked.reply).status == 500


@pytest.mark.parametrize("is_stream", [False, True])
@on_uvloop
async def test_a_client_that_leaves_cancels_its_calls(is_stream: bool) -> None:
    async with language_server() as (core, server):
        client = await Client.connect(server.port)
        body = {"model": "chat", "prompt": ["a", "b"], "stream": is_stream}
        client.request("POST", "/v1/completions", json.dumps(body).encode())
        both = [await core.next_held(), await core.next_held()]
        if is_stream:
            say(both[0], piece("A"))
            await client.read_head()
        client.reset()
        while not all(held.is_cancelled for held in both):
            core.on_cancelled.clear()
            await core.on_cancelled.wait()


@on_uvloop
async def test_tool_calls_streamed_and_whole() -> None:
    text = 'Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    async with language_server() as (core, server):
        asked = await ask(core, server, tools=TOOLS)
        assert (asked.call.tools, asked.call.grammar) == (TOOLS, None)
        say(asked.held, piece(text, finish="stop"), is_final=True)
        choice = (await asked.reply).json()["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Well. ")
        assert choice["message"]["tool_calls"][0]["function"] == {
            "name": "add",
            "arguments": '{"a": 1}',
        }
        asked = await ask(core, server, tools=TOOLS, stream=True)
        for character in text:
            say(asked.held, piece(character))
        say(asked.held, piece("", finish="stop"), is_final=True)
        choices = [chunk["choices"][0] for chunk in events(await asked.reply)]
        parts = [part for each in choices for part in each["delta"].get("tool_calls", [])]
        assert (parts[0]["type"], parts[0]["function"]) == (
            "function",
            {"arguments": "", "name": "add"},
        )
        assert "".join(part["function"]["arguments"] for part in parts) == '{"a": 1}'
        assert "".join(each["delta"].get("content") or "" for each in choices) == "Well. "
        assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("is_stream", [False, True])
@on_uvloop
async def test_one_call_at_a_time(is_stream: bool) -> None:
    text = "".join(
        f'<tool_call>{{"name": "add", "arguments": {{"a": {a}}}}}</tool_call>' for a in (1, 2)
    )
    async with language_server() as (core, server):
        asked = await ask(core, server, tools=TOOLS, parallel_tool_calls=False, stream=is_stream)
        say(asked.held, piece(text, finish="stop"), is_final=True)
        reply = await asked.reply
        if is_stream:
            choices = [chunk["choices"][0] for chunk in events(reply)]
            calls = [part for one in choices for part in one["delta"].get("tool_calls", [])]
        else:
            choices = reply.json()["choices"]
            calls = choices[0]["message"]["tool_calls"]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
        assert choices[-1]["finish_reason"] == "tool_calls"


@on_uvloop
async def test_tool_choice_and_formats_become_grammars() -> None:
    schema = {"type": "object"}
    async with language_server() as (core, server):
        for fields, kind, message in [
            (
                {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
                "json_schema",
                '"maxItems":1',
            ),
            (
                {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
                "json_schema",
                '"a"',
            ),
            ({"response_format": {"type": "json_object"}}, "json_object", ""),
            (
                {
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "x", "schema": schema},
                    }
                },
                "json_schema",
                "object",
            ),
            ({"guided_choice": ["a.", "b"]}, "regex", r"(a\.)|(b)"),
            ({"guided_grammar": "root ::= x"}, "ebnf", "root ::= x"),
        ]:
            asked = await ask(core, server, **fields)  # type: ignore[arg-type]
            assert asked.call.grammar is not None
            assert asked.call.grammar.kind == kind
            assert message in asked.call.grammar.value
            asked.held.stream.close()
            await asked.reply
        asked = await ask(core, server, tools=TOOLS, tool_choice="none")
        assert (asked.call.tools, asked.call.grammar) == (None, None)
        asked.held.stream.close()
        await asked.reply


@on_uvloop
async def test_embeddings_in_batches() -> None:
    async with language_server() as (core, server):
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        document = (
            await call(server.port, "POST", "/v1/embeddings", {"model": "embed", "input": texts})
        ).json()
        assert [entry["embedding"] for entry in document["data"]] == [
            [len(text), 0.5, -1.0] for text in texts
        ]
        assert [entry["index"] for entry in document["data"]] == [0, 1, 2, 3, 4]
        assert (document["object"], core.batches) == ("list", [4, 1])
        fields = {"model": "embed", "input": "abc", "encoding_format": "base64", "dimensions": 3}
        document = (await call(server.port, "POST", "/v1/embeddings", fields)).json()
        assert np.frombuffer(
            base64.b64decode(document["data"][0]["embedding"]), "<f4"
        ).tolist() == [
            3,
            0.5,
            -1,
        ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "chat", "input": "x"}, "model"),
        ({"input": [1, 2]}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "dimensions": 2}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({}, "input"),
    ],
)
@on_uvloop
async def test_wrong_fields_of_embeddings(fields: dict[str, Any], param: str) -> None:
    async with language_server() as (_, server):
        status, error = await refused(server, "embeddings", **({"model": "embed"} | fields))
        assert (status, error["param"]) == (400, param)


@on_uvloop
async def test_items_of_a_response_become_messages() -> None:
    items = [
        {
            "role": "developer",
            "content": [
                {"type": "input_text", "text": "Be"},
                {"type": "input_text", "text": " brief"},
            ],
        },
        {"type": "message", "role": "user", "content": "Add"},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]
    async with language_server() as (core, server):
        asked = await ask(core, server, "responses", input=items, max_output_tokens=4)
        call_message = {
            "id": "c1",
            "type": "function",
            "function": {"name": "add", "arguments": "{}"},
        }
        assert asked.call.messages == [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Add"},
            {"role": "assistant", "content": "", "tool_calls": [call_message]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
        assert asked.call.parameters.max_tokens == 4
        say(asked.held, piece("It is three", finish="length"), is_final=True)
        document = (await asked.reply).json()
        assert (document["status"], document["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )
        assert document["output"][0]["content"][0]["text"] == "It is three"
        assert (document["usage"]["input_tokens"], document["usage"]["output_tokens"]) == (7, 3)


@on_uvloop
async def test_a_response_that_fails_midway_ends_with_an_error_event() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server, "responses", input="Hi", stream=True)
        say(asked.held, piece("A"))
        asked.held.stream.fail(NaiadError(Code.INTERNAL, "broken"))
        last = (await asked.reply).body.split(b"\n\n")[-2]
        assert last.startswith(b"event: response.failed\n")
        assert b'"message":"broken"' in last


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].arguments"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
    ],
)
@on_uvloop
async def test_wrong_fields_of_a_response(fields: dict[str, Any], param: str) -> None:
    async with language_server() as (_, server):
        status, error = await refused(server, "responses", **fields)
        assert (status, error["param"]) == (400, param)


@on_uvloop
async def test_compressed_bodies() -> None:
    async with language_server() as (_, server):
        body = gzip.compress(json.dumps({"model": "embed", "input": "abc"}).encode())
        reply = await call(
            server.port, "POST", "/v1/embeddings", body, {"Content-Encoding": "gzip"}
        )
        assert reply.json()["data"][0]["embedding"][0] == 3
        reply = await call(server.port, "POST", "/v1/embeddings", body, {"Content-Encoding": "br"})
        assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


@on_uvloop
async def test_wrong_methods_and_unknown_paths() -> None:
    async with language_server() as (_, server):
        for method, path, status in (
            ("GET", "chat/completions", 405),
            ("POST", "nothing", 404),
            ("DELETE", "models/chat", 405),
        ):
            reply = await call(server.port, method, f"/v1/{path}")
            assert (reply.status, reply.json()["error"]["type"]) == (
                status,
                "invalid_request_error",
            )


@on_uvloop
async def test_a_model_that_goes_away_is_503() -> None:
    async with language_server() as (core, server):
        asked = await ask(core, server)
        del core.models["chat"]
        asked.held.stream.fail(unavailable("its worker died", 1))
        reply = await asked.reply
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")


@on_uvloop
async def test_an_embedding_model_that_goes_away_is_503() -> None:
    async with language_server() as (core, server):
        embed = core.models["embed"]
        assert isinstance(embed, FakeModel)
        embed.compute = core.hold
        client = await Client.connect(server.port)
        body = json.dumps({"model": "embed", "input": "a"}).encode()
        client.request("POST", "/v1/embeddings", body)
        held = await core.next_held()
        del core.models["embed"]
        held.stream.fail(unavailable("its worker died", 1))
        reply = await client.read()
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        await client.close()


@on_uvloop
async def test_a_client_that_reads_slowly_pauses_the_generation() -> None:
    async with language_server() as (core, server):
        client = await Client.connect(server.port)
        client.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "chat", "messages": USER, "stream": True}).encode(),
        )
        _, held = await core.next_call()
        paused = asyncio.Event()
        held.stream.on_flow(lambda is_paused: paused.set() if is_paused else None)
        while not paused.is_set():
            say(held, piece("x" * 100_000))
            await asyncio.sleep(0)
        client.reset()
        while not held.is_cancelled:
            core.on_cancelled.clear()
            await core.on_cancelled.wait()
