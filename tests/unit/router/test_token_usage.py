from __future__ import annotations

import json

import pytest

from naiad.core.identity import Identity
from naiad.keys.account import Admission
from naiad.router.token_usage import UsageReader, estimate_openai_tokens, estimate_tensor_tokens


class Recorder(Admission):
    def __init__(self) -> None:
        super().__init__(Identity("k"))
        self.settled: tuple[int, int] | None = None

    def settle(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.settled = (num_prompt_tokens, num_output_tokens)


@pytest.mark.parametrize(
    ("fields", "num_output"),
    [
        ({}, 1024),
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": 10, "max_completion_tokens": 7}, 7),
        ({"max_tokens": -5}, 0),
    ],
)
def test_an_estimate_is_the_prompt_and_what_may_be_written(
    fields: dict[str, int], num_output: int
) -> None:
    body = json.dumps({"model": "m", "prompt": "x" * 400, **fields}).encode()
    num_prompt = -(-len(body) // 4)
    assert estimate_openai_tokens("/v1/completions", body) == num_prompt + num_output
    assert estimate_openai_tokens("/v1/embeddings", body) == num_prompt


def test_a_body_that_cannot_be_read_counts_by_its_length() -> None:
    assert estimate_openai_tokens("/v1/completions", b'{"max_tokens": "many"}') == 6
    assert estimate_openai_tokens("/v1/completions", b"\xff" * 8) == 2
    assert estimate_tensor_tokens(40) == 10 + 1024


def test_a_response_is_counted_by_its_usage() -> None:
    admission = Recorder()
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 5,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    text = 'a text that says "prompt_tokens": 900, "completion_tokens": 900'
    body = json.dumps({"usage": usage, "choices": [{"text": text}]}).encode()
    UsageReader(admission, 99).on_whole(body)
    assert admission.settled == (11, 5), "what the model writes does not count"


def test_embeddings_have_a_prompt_only() -> None:
    admission = Recorder()
    UsageReader(admission, 99).on_whole(b'{"usage":{"prompt_tokens": 4, "total_tokens": 4}}')
    assert admission.settled == (4, 0)


def test_an_error_settles_nothing() -> None:
    admission = Recorder()
    UsageReader(admission, 99).on_whole(b'{"error": {"message": "no"}}')
    assert admission.settled is None


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_is_counted_by_its_events_or_by_its_usage(size: int) -> None:
    event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    last = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":40}}\n\n'
    end = b"data: [DONE]\n\n"

    def read(stream: bytes) -> tuple[int, int] | None:
        admission = Recorder()
        reader = UsageReader(admission, 9)
        for start in range(0, len(stream), size):
            reader.on_data(stream[start : start + size])
        return admission.settled

    assert read(event * 200 + end) == (9, 200)
    assert read(event * 20 + last + end) == (3, 40)
