"""Which of the body's fields a refusal of the engine is about."""

from __future__ import annotations

import pytest

from naiad.errors import invalid_arg, unavailable
from naiad.protocol.openai.error import from_core

NAMES = frozenset({"temperature", "logit_bias", "logprobs", "prompt"})


@pytest.mark.parametrize(
    ("words", "param"),
    [
        ("temperature is -1, expected 0 to 100", "temperature"),
        ("logit_bias names token 7, expected 0 to 5", "logit_bias"),
        ("the openvino engine has no logit_bias; the native engine does", "logit_bias"),
        ("the openvino engine has no logprobs beyond 1; the native engine does", "logprobs"),
        ("the openvino engine has no grammar; the native engine does", None),
        ("the prompt has 9 tokens, the model's context is 8", "prompt"),
    ],
)
def test_the_field_is_named(words: str, param: str | None) -> None:
    error = from_core(invalid_arg(words), NAMES)
    assert (error.status, error.param) == (400, param)


def test_full_queues_are_429_and_a_model_that_is_away_is_503() -> None:
    assert from_core(unavailable("full", 3), NAMES).retry_after_s == 3
    assert [
        from_core(unavailable("full", 3), NAMES, is_leaving=leaves).status
        for leaves in (False, True)
    ] == [429, 503]
