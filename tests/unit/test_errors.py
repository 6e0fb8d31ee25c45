"""Messages of errors repeat what a client sent, but not without end."""

from __future__ import annotations

import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import MAX_MESSAGE_CHARACTERS, NaiadError, invalid_arg
from naiad.protocol.openai.error import bad_request
from naiad.repository.request_check import RequestCheck


def test_ordinary_messages_are_as_they_are() -> None:
    assert invalid_arg("x" * MAX_MESSAGE_CHARACTERS).message == "x" * MAX_MESSAGE_CHARACTERS


def test_long_messages_lose_their_middle() -> None:
    for error in (invalid_arg("a" * 1_000_000 + "z"), bad_request("a" * 1_000_000 + "z")):
        assert len(error.message) < MAX_MESSAGE_CHARACTERS + 100
        assert error.message.startswith("aaa")
        assert error.message.endswith("aaz")
        assert "983617 characters" in error.message


def test_errors_repeat_the_first_names_only() -> None:
    spec = ModelSpec("m", 1, [1], "p", 0, {"IN": TensorSpec("IN", "FP32", [1], [1])}, {})
    inputs = [Tensor(f"x{index}", "FP32", [1], b"1234") for index in range(1000)]
    with pytest.raises(NaiadError) as caught:
        RequestCheck(spec).check(InferRequest("m", inputs))
    message = caught.value.message
    assert "got 1000 inputs" in message
    assert "'x255',... (744 more)]" in message
    assert "missing required input(s) ['IN']" in message
