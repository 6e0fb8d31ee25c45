"""OpenAI's routes for models that are no language models of ours, but have a text input and a text
output: what reaches the model, and what its texts become."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.tensor import tensor_from_numpy
from naiad.errors import invalid_arg
from tests.fakes.core import FakeCore
from tests.fakes.model import FakeModel, model_spec, respond, tensor_spec
from tests.wire.http_client import Reply, call, on_uvloop
from tests.wire.http_rig import HttpServer, serving

TEXT_IN, TEXT_OUT = (
    tensor_spec("text_input", "BYTES", [1]),
    tensor_spec("text_output", "BYTES", [1]),
)
CHAT = {"messages": [{"role": "user", "content": "Hi you"}]}


def optional(name: str, datatype: str, dims: list[int]) -> TensorSpec:
    return tensor_spec(name, datatype, dims, is_optional=True)


PARAMETERS = [
    optional("stream", "BOOL", [1]), optional("max_tokens", "INT32", [1]),
    optional("temperature", "FP32", [1]), optional("stop", "BYTES", [-1]),
    optional("exclude_input_in_output", "BOOL", [1]),
]  # fmt: skip


class TextCore(FakeCore):
    """`plain` answers each text in one response; `words` a word in each, and `talker`, which has
    inputs for parameters and counts tokens, too; `picky` needs another input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []
        counts = [tensor_spec("num_input_tokens", "INT32", [1]),
                  tensor_spec("num_output_tokens", "INT32", [1])]  # fmt: skip
        label, messages = tensor_spec("label", "BYTES", [1]), optional("messages", "BYTES", [1])
        text = optional("text_input", "BYTES", [1])
        for spec in (
            model_spec("plain", [TEXT_IN], [TEXT_OUT], max_batch_size=4),
            model_spec("words", [TEXT_IN], [TEXT_OUT], is_decoupled=True),
            model_spec("talker", [TEXT_IN, *PARAMETERS], [TEXT_OUT, *counts], is_decoupled=True),
            model_spec("chatter", [text, messages], [TEXT_OUT]),
            model_spec("picky", [TEXT_IN, label], [TEXT_OUT]),
        ):
            self.models[spec.name] = FakeModel(spec, self.answer)

    def answer(self, request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        values = {one.name: one.as_numpy().ravel().tolist() for one in request.inputs}
        self.seen.append(values)
        text = b"".join(values.get("text_input") or values["messages"]).decode()
        if text == "fail":
            stream.fail(invalid_arg("no"))
            return
        if not spec.is_decoupled:
            respond(request, stream, [out("text_output", text.upper())])
            return
        for word in text.split():
            outputs = [out("text_output", word.upper())]
            if "num_input_tokens" in spec.outputs:
                outputs += [out("num_input_tokens", 5), out("num_output_tokens", 1)]
            respond(request, stream, outputs, is_final=False)
        stream.close()


def out(name: str, value: str | int) -> Any:
    array = (
        np.array([value.encode()], object)
        if isinstance(value, str)
        else np.array([value], np.int32)
    )
    return tensor_from_numpy(name, array)


@contextlib.asynccontextmanager
async def text_server() -> AsyncIterator[tuple[TextCore, HttpServer]]:
    core = TextCore()
    async with serving(core=core) as server:
        yield core, server


async def post(server: HttpServer, path: str, **fields: Any) -> Reply:
    return await call(server.port, "POST", f"/v1/{path}", fields)


def events(reply: Reply) -> list[Any]:
    parts = reply.body.split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-2]]


@on_uvloop
async def test_the_list_has_them() -> None:
    async with text_server() as (_, server):
        names = [
            card["id"] for card in (await call(server.port, "GET", "/v1/models")).json()["data"]
        ]
        assert [name for name in names if name in TextCore().models] == names
        assert {"plain", "words", "talker", "chatter"} <= set(names)
        assert "picky" not in names
        assert (await call(server.port, "GET", "/v1/models/plain")).status == 200
        reply = await post(server, "chat/completions", model="picky", **CHAT)
        assert (reply.status, reply.json()["error"]["code"]) == (400, "model_not_supported")


@pytest.mark.parametrize("model", ["plain", "words"])
@on_uvloop
async def test_chats_completions_and_responses(model: str) -> None:
    text = "HI YOU" if model == "plain" else "HIYOU"
    async with text_server() as (core, server):
        choice = (await post(server, "chat/completions", model=model, **CHAT)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        reply = await post(server, "completions", model=model, prompt=["Hi you", "b"], echo=True)
        assert [choice["text"] for choice in reply.json()["choices"]] == [f"Hi you{text}", "bB"]
        reply = await post(server, "responses", model=model, input="Hi you")
        assert reply.json()["output"][0]["content"][0]["text"] == text
        assert core.seen[0] == {"text_input": [b"Hi you"]}


@on_uvloop
async def test_a_chat_is_streamed_where_the_model_is_decoupled() -> None:
    async with text_server() as (core, server):
        reply = await post(
            server, "chat/completions", model="talker", stream=True, max_tokens=7, temperature=0.5,
            stop=["x", "y"], stream_options={"include_usage": True}, **CHAT,
        )  # fmt: skip
        chunks = events(reply)
        deltas = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1]]
        assert deltas == ["", "HI", "YOU", None]
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"]) == (
            5,
            2,
        )
        assert core.seen == [
            {
                "text_input": [b"Hi you"], "stream": [True], "max_tokens": [7],
                "temperature": [0.5], "stop": [b"x", b"y"], "exclude_input_in_output": [True],
            }
        ]  # fmt: skip


@on_uvloop
async def test_a_model_that_is_not_decoupled_streams_at_once() -> None:
    async with text_server() as (_, server):
        chunks = events(await post(server, "chat/completions", model="plain", stream=True, **CHAT))
        assert [one["choices"][0]["delta"].get("content") for one in chunks] == ["", "HI YOU", None]


@on_uvloop
async def test_a_chat_of_several_messages_becomes_a_text_or_goes_to_the_input_for_messages() -> (
    None
):
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    async with text_server() as (core, server):
        await post(server, "chat/completions", model="plain", messages=messages)
        await post(server, "chat/completions", model="chatter", messages=messages)
        assert core.seen[0] == {"text_input": [b"system: Be brief\nuser: Hi\nassistant:"]}
        assert json.loads(core.seen[1]["messages"][0]) == messages
        assert "text_input" not in core.seen[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"temperature": 0}, "temperature"),
        ({"n": 2}, "n"),
        ({"seed": 1}, "seed"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
@on_uvloop
async def test_what_the_model_has_no_input_for_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    async with text_server() as (core, server):
        reply = await post(server, "chat/completions", model="plain", **CHAT, **fields)
        error = reply.json()["error"]
        assert (reply.status, error["param"]) == (400, param)
        assert f"'{param}'" in error["message"]
        assert not core.seen


@on_uvloop
async def test_values_that_ask_for_nothing_are_accepted() -> None:
    async with text_server() as (_, server):
        fields = {"n": 1, "temperature": 1, "top_p": 1.0, "logprobs": False, "stop": None}
        reply = await post(server, "chat/completions", model="plain", **CHAT, **fields)
        assert reply.status == 200


@on_uvloop
async def test_errors() -> None:
    async with text_server() as (_, server):
        for fields, message in (
            ({"prompt": [1, 2]}, "takes text only"),
            ({"prompt": "fail"}, "no"),
        ):
            reply = await post(server, "completions", model="plain", **fields)
            assert (reply.status, message in reply.json()["error"]["message"]) == (400, True)
        reply = await post(server, "completions", model="words", prompt="")
        assert reply.status == 500  # it ended without a response
        reply = await post(server, "chat/completions", model="talker", stop=["a"], max_tokens=-1,
                           **CHAT)  # fmt: skip
        assert reply.status == 400
