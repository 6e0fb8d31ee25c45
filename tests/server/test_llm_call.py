"""The internal call (naiad.ipc.generation_call) answers alike on every language backend; grammars
hold."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.tensor import Tensor
from naiad.ipc.generation_call import (
    CALL_PARAMETER,
    GenerationCall,
    GenerationEvent,
    GrammarCall,
    generation_request,
    read_event,
)
from naiad.llm.parameters import SamplingParameters
from tests.server.harness import Server

MODELS = ["tiny", "tiny_vllm", "tensorrt_llm"]
USER = [{"role": "user", "content": "Hi"}]


def spec(server: Server, model: str) -> ModelSpec:
    config = json.loads(server.get(f"/v2/models/{model}/config")[1])
    inputs = {
        one["name"]: TensorSpec(
            one["name"],
            one["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"),
            one["dims"],
            [],
            one["optional"],
        )
        for one in config["input"]
    }
    return ModelSpec(model, 1, [1], "", config["max_batch_size"], inputs, {})


def call(server: Server, model: str, **fields: Any) -> tuple[int, list[GenerationEvent] | str]:
    """Calls through /generate_stream, because an internal call is an ordinary request."""
    request = generation_request(spec(server, model), GenerationCall(prompt="x"))
    body: dict[str, Any] = {tensor.name: _plain(tensor) for tensor in request.inputs}
    # Written here, because generation_request refuses wrong calls before they are sent.
    body[CALL_PARAMETER] = msgspec.json.encode(GenerationCall(**fields)).decode()
    status, answer = server.post(f"/v2/models/{model}/generate_stream", body)
    found = [json.loads(line.removeprefix(b"data: ")) for line in answer.split(b"\n\n") if line]
    if status != 200:
        return status, found[0]["error"]
    tensors = [bytes(one[CALL_PARAMETER]) for one in found]
    return status, [
        read_event([Tensor(CALL_PARAMETER, "UINT8", [len(data)], data)]) for data in tensors
    ]


def _plain(tensor: Tensor) -> Any:
    values = tensor.as_numpy().ravel().tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


@pytest.mark.parametrize("model", MODELS)
def test_events_of_a_chat(llm_server: Server, model: str) -> None:
    parameters = SamplingParameters(max_tokens=6, n=2, logprobs=2, seed=1, ignore_eos=True)
    status, events = call(llm_server, model, messages=USER, parameters=parameters)
    assert status == 200
    assert isinstance(events, list)
    assert len(events) == 6
    for index in range(2):
        pieces = [piece for event in events for piece in event.pieces if piece.index == index]
        assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["length"]
        assert all(
            len(piece.token_ids) == 1
            and piece.logprobs is not None
            and len(piece.logprobs[0].top) == 2
            for piece in pieces
        )
    assert (events[-1].num_prompt_tokens, events[-1].num_output_tokens) == (21, 12)


@pytest.mark.parametrize("model", MODELS)
def test_one_event_with_everything(llm_server: Server, model: str) -> None:
    greedy = SamplingParameters(max_tokens=6, temperature=0.0, ignore_eos=True)
    _, whole = call(llm_server, model, prompt="Hello", parameters=greedy, is_streamed=False)
    _, pieces = call(llm_server, model, prompt="Hello", parameters=greedy)
    assert isinstance(whole, list)
    assert isinstance(pieces, list)
    assert len(whole) == 1
    assert whole[0].pieces[0].token_ids == [
        token for event in pieces for token in event.pieces[0].token_ids
    ]
    assert whole[0].pieces[0].text == "".join(event.pieces[0].text for event in pieces)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "expected either a prompt or messages"),
        ({"prompt": "x", "parameters": SamplingParameters(temperature=-1.0)}, "temperature is -1"),
        ({"prompt": "x", "grammar": GrammarCall("haiku")}, "grammar kind is 'haiku'"),
        (
            {"messages": USER, "template_arguments": {"messages": []}},
            "'messages' cannot be an argument of the chat template",
        ),
    ],
)
def test_what_is_wrong_is_a_400(llm_server: Server, fields: dict[str, Any], words: str) -> None:
    status, message = call(llm_server, "tiny", **fields)
    assert (status, words in str(message)) == (400, True), message


@pytest.mark.skipif(find_spec("xgrammar") is None, reason="needs xgrammar (the grammar extra)")
@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
            "required": ["a", "b"],
        },
        {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3},
        {"enum": ["red", "green"]},
    ],
)
def test_answers_follow_a_schema(llm_server: Server, schema: dict[str, Any]) -> None:
    parameters = SamplingParameters(max_tokens=200, seed=4, n=2)
    grammar = GrammarCall("json_schema", json.dumps(schema))
    status, events = call(
        llm_server, "tiny", prompt="json", parameters=parameters, grammar=grammar, is_streamed=False
    )
    assert status == 200, events
    assert isinstance(events, list)
    for piece in events[0].pieces:
        assert piece.finish_reason == "stop"
        value = json.loads(piece.text)
        if "properties" in schema:
            assert value["a"] in ("x", "y")
            assert isinstance(value["b"], bool)
        elif schema.get("type") == "array":
            assert 2 <= len(value) <= 3
        else:
            assert value in schema["enum"]


@pytest.mark.skipif(find_spec("xgrammar") is None, reason="needs xgrammar (the grammar extra)")
def test_a_schema_that_cannot_be_used_is_a_400(llm_server: Server) -> None:
    for value, words in (
        ("{", "the json_schema of the request cannot be used"),
        ('{"type": "no such type"}', "which is not a JSON type"),
    ):
        status, message = call(
            llm_server, "tiny", prompt="x", grammar=GrammarCall("json_schema", value)
        )
        assert (status, words in str(message)) == (400, True), message
