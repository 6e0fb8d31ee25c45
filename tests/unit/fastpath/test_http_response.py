"""A plan encodes responses as the full path does, and learns from those that it does not know."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.fastpath.http_plan import HttpPlan
from naiad.protocol.v2 import json_codec
from naiad.protocol.v2.output_format import (
    ALL_BINARY,
    ALL_JSON,
    BINARY_FORMAT,
    JSON_FORMAT,
    OutputFormat,
    OutputFormats,
)
from naiad.transport.http1.response_head import render_head
from tests.unit.fastpath.planned import PlannedModel

SPEC = ModelSpec("m", 1, [1], "", 0, {}, {})
NUMBERS = [name for name in DATATYPES if name not in ("BYTES", "FP16", "BF16")]


def new_plan(formats: OutputFormats) -> HttpPlan:
    return HttpPlan(PlannedModel(), "", InferRequest("m", []), formats)  # type: ignore[arg-type]


def is_planned(plan: HttpPlan, id: str, *outputs: Tensor, **more: Any) -> bool:
    """Whether the plan encoded the response, which is then what the full path encodes; the plan
    learns it otherwise."""
    response = InferResponse(
        more.pop("name", "m"), more.pop("version", "1"), id, list(outputs), **more
    )
    encoded = json_codec.encode_response(response, plan.formats, SPEC)
    parts = plan.encode(response)
    if parts is None:
        plan.learn(response, encoded)
        return False
    expected = render_head(200, encoded.headers, encoded.size) + b"".join(encoded.parts)
    assert b"".join(parts) == expected
    return True


def floats(*numbers: float) -> Tensor:
    return Tensor("O", "FP32", [len(numbers)], struct.pack(f"<{len(numbers)}f", *numbers))


# JSON.


@given(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3),
    st.lists(st.binary(min_size=24, max_size=24), min_size=9, max_size=9),
)
def test_any_numbers(datatypes: list[str], blocks: list[bytes]) -> None:
    plan = new_plan(ALL_JSON)
    for round in range(3):
        outputs = []
        for n, datatype in enumerate(datatypes):
            data = blocks[round * 3 + n]
            if datatype == "BOOL":
                data = bytes(octet & 1 for octet in data)
            shape = [24 // DATATYPES[datatype].byte_size]
            outputs.append(Tensor(f"O{n}", datatype, shape, bytearray(data)))
        is_planned(plan, "", *outputs)
    ordinary = [Tensor(t.name, t.datatype, t.shape, bytes(24)) for t in outputs]
    assert is_planned(plan, "", *ordinary)


def test_json_responses_of_all_kinds_in_turn() -> None:
    plan = new_plan(ALL_JSON)
    usual = floats(1, 2.5)
    assert not is_planned(plan, "", usual)
    for id in ("", "1", "22", "x" * 128):
        assert is_planned(plan, id, usual)
        assert is_planned(plan, id, floats(0.1, -0.0))
    for id in ("null", "a null b", 'a"', "ü", "\\", "x" * 129, "\udc80"):
        assert not is_planned(plan, id, usual)
        assert is_planned(plan, "2", usual)
    nan, infinity = float("nan"), float("inf")
    for outputs in (
        [floats(nan, 1)],
        [floats(infinity, 1)],
        [floats(1)],
        [],
        [usual, usual],
        [Tensor("P", "FP32", [2], usual.data)],
        [Tensor("O", "INT32", [2], usual.data)],
        [Tensor("O", "FP32", [1, 2], usual.data)],
    ):
        assert not is_planned(plan, "1", *outputs)
        is_planned(plan, "1", usual)
        assert is_planned(plan, "1", usual)
    for more in ({"parameters": {"a": 1}}, {"name": "other"}, {"version": "2"}):
        assert not is_planned(plan, "", usual, **more)
        is_planned(plan, "", usual)
    for name in ("null", "\0"):
        for number in (1e17, 1e18, 1e19):
            is_planned(plan, "", Tensor(name, "FP32", [1], struct.pack("<f", number)))
    many = np.linspace(-1, 1, 1000, dtype=np.float32)
    for scale in (1, 2, 3):
        tensor = Tensor("O", "FP32", [1000], (many * np.float32(scale)).tobytes())
        assert is_planned(plan, "", tensor) == (scale > 1)


def test_json_responses_that_are_not_learned() -> None:
    other = Tensor("P", "FP32", [1], bytes(4))
    classes = new_plan(OutputFormats(JSON_FORMAT, {"O": OutputFormat(classification=1)}))
    some = new_plan(OutputFormats(JSON_FORMAT, {"P": JSON_FORMAT}))
    both = new_plan(OutputFormats(JSON_FORMAT, {"O": BINARY_FORMAT, "P": JSON_FORMAT}))
    strings = new_plan(ALL_JSON)
    for _ in range(3):
        assert not is_planned(classes, "", floats(1, 2))
        assert not is_planned(some, "", floats(1, 2), other)
        assert not is_planned(both, "", floats(1, 2), other)
        assert not is_planned(strings, "", Tensor("O", "BYTES", [1], b"\x01\0\0\0a"))
        assert not is_planned(strings, "", Tensor("O\udc80", "FP32", [1], bytes(4)))


# Binary data.


def test_binary_responses_with_ids_of_all_kinds_in_turn() -> None:
    plan = new_plan(ALL_BINARY)
    for id in ("", "1", "33", "X" * 128):
        assert not is_planned(plan, id, floats(1, 2)), "the head depends on the length of the id"
        for number in range(3):
            assert is_planned(plan, id, floats(number, 2))
    for id in ('a"', "\\", "ü", "xü", "Z" * 129, "8" * 129):
        for number in range(2):
            assert not is_planned(plan, id, floats(number, 2))
    assert is_planned(plan, "7", floats(4, 5))
    assert not is_planned(plan, "7", floats(4, 5, 6))
    assert not is_planned(plan, "7", floats(4, 5), parameters={"a": 1})
    assert not is_planned(plan, "7", floats(4, 5), version="2")


def test_large_responses_are_not_copied_together() -> None:
    plan = new_plan(ALL_BINARY)
    for _ in range(3):
        assert not is_planned(plan, "", Tensor("O", "UINT8", [1 << 17], bytes(1 << 17)))


def test_a_response_with_an_error_is_never_planned() -> None:
    for formats in (ALL_JSON, ALL_BINARY):
        plan = new_plan(formats)
        is_planned(plan, "", floats(1, 2))
        response = InferResponse("m", "1", "", [floats(1, 2)], error=invalid_arg("no"))
        assert plan.encode(response) is None
