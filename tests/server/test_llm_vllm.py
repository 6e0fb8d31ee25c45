"""backend: "vllm": the tensors, defaults and words of Triton's vLLM backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.harness import Server
from tests.server.llm_client import generate

MODEL = "tiny_vllm"


def test_metadata_lists_the_tensors(llm_server: Server) -> None:
    config = json.loads(llm_server.get(f"/v2/models/{MODEL}/config")[1])
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert [one["name"] for one in config["input"]][:2] == ["text_input", "image"]
    assert {one["name"] for one in config["output"]} == {
        "text_output", "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens",
        "num_output_tokens",
    }  # fmt: skip


def test_tutorial_request(llm_server: Server) -> None:
    """The curl line of Triton's quick start: the prompt comes back, sampling parameters are flat
    keys, 16 tokens by default."""
    answer = generate(
        llm_server,
        MODEL,
        text_input="What is Triton?",
        parameters={"stream": False, "temperature": 0, "ignore_eos": True},
    )
    assert answer["text_output"].startswith("What is Triton?")
    bare = generate(
        llm_server,
        "tiny",
        text_input="What is Triton?",
        temperature=0,
        ignore_eos=True,
        max_tokens=16,
    )
    assert answer["text_output"] == "What is Triton?" + bare["text_output"]


def test_sampling_parameters_as_json_and_what_return_asks_for(llm_server: Server) -> None:
    sampling = json.dumps(
        {"temperature": "0", "max_tokens": 5, "ignore_eos": True, "n": 2, "logprobs": 2}
    )
    answer = generate(
        llm_server, MODEL, text_input="Hi", sampling_parameters=sampling,
        exclude_input_in_output=True, return_finish_reason=True,
        return_cumulative_logprob=True, return_logprobs=True, return_num_input_tokens=True,
        return_num_output_tokens=True,
    )  # fmt: skip
    assert answer["finish_reason"] == ["length", "length"]
    assert answer["num_input_tokens"] == 2
    assert answer["num_output_tokens"] == [5, 5]
    tokens = json.loads(answer["logprobs"][0])
    assert len(tokens) == 5
    best = [max(entry["logprob"] for entry in token.values()) for token in tokens]
    assert answer["cumulative_logprob"][0] == pytest.approx(sum(best), abs=1e-4)


def test_stream_has_no_prompt_and_says_none_until_the_end(llm_server: Server) -> None:
    fields = {
        "text_input": "Hi",
        "stream": True,
        "return_finish_reason": True,
        "temperature": 0,
        "max_tokens": 4,
        "ignore_eos": True,
    }
    status, body = llm_server.post(f"/v2/models/{MODEL}/generate_stream", fields)
    assert status == 200
    found = [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n") if line]
    assert [event["finish_reason"] for event in found] == ["None", "None", "None", "length"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"stream": True, "exclude_input_in_output": False},
            "When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
        (
            {"use_beam_search": True},
            "sampling parameter 'use_beam_search' is True, which cannot be honoured",
        ),
        (
            {"sampling_parameters": '{"best_of": 3}'},
            "sampling parameter 'best_of' is 3, expected n (1)",
        ),
        (
            {"sampling_parameters": '{"temprature": 1}'},
            "unknown sampling parameter 'temprature'; did you mean 'temperature'?",
        ),
        ({"image": ["aGVsbG8="]}, "input 'image' cannot be used"),
    ],
)
def test_refusals(llm_server: Server, fields: dict[str, Any], words: str) -> None:
    status, body = llm_server.post(f"/v2/models/{MODEL}/generate", {"text_input": "x", **fields})
    assert status == 400
    assert words in json.loads(body)["error"]
