"""Requests and answers in JSON of a plan that is known: they are what decoding and encoding all of
them would give, or not taken at all."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.datatype import DATATYPES
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.fastpath.http_json import JsonPlan
from naiad.protocol.v2 import json_checked, json_codec
from tests.unit.fastpath.planned import Decoder

NUMBERS = [name for name in DATATYPES if name not in ("BYTES", "FP16", "BF16")]
TEXTS = [
    "0", "1", "-1", "7", "255", "256", "-129", "65536", "4294967296", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "1" * 40, "1" * 400, "-0", "0.0", "-0.0", "1.0",
    "1e0", "1E+2", "1e-400", "1e39",
    "-1e39", "1e308", "1e309", "0.1", "16777217", "3.4028235677973366e38", "9007199254740993",
    "true", "false", "null", "NaN", "-Infinity",
    "Infinity", '"1"', '"]"', "[1]", "[]", "{}", "01", "+1", "1.", ".5", "1e", " 2 ", "\n3\t", "",
    "1 2", "// 1", "0x1", "1_0", "\u0661",
]  # fmt: skip
ORDINARY = {
    "BOOL": ["true", "false"],
    "FP32": ["1", "-2.5", "1e3", "0.1"],
    "FP64": ["1", "-2.5", "1e300", "0.1"],
}


def tensor(name: str, datatype: str, shape: list[int], data: str) -> str:
    return f'{{"name":"{name}","datatype":"{datatype}","shape":{json.dumps(shape)},"data":{data}}}'


def body(*tensors: str, start: str = "", end: str = "") -> bytes:
    return f'{{{start}"inputs":[{",".join(tensors)}]{end}}}'.encode()


DECODER = Decoder()


def decode(text: bytes) -> InferRequest:
    return json_codec.decode_request(text, None, "m", "", 1 << 20).request


def plan_of(text: bytes, decoder: Decoder = DECODER) -> JsonPlan:
    request, plan = decoder.decode(text)
    assert isinstance(plan, JsonPlan)
    assert request.signature is plan.signature
    return plan


def says(request: InferRequest) -> list[Any]:
    tensors = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    return [
        tensors,
        request.id,
        request.requested_outputs,
        request.parameters,
        request.model_name,
        request.model_version,
    ]


def checked(text: bytes) -> list[Any] | None:
    """Read field by field; None for what is refused."""
    try:
        return says(json_checked.decode_request(text, memoryview(b""), "m", "", 1 << 20)[0])
    except NaiadError:
        return None


def check_same(plan: JsonPlan, text: bytes) -> bool:
    """Whether it was filled; what was is as all other ways read it."""
    found = plan.decode(text)
    if found is None:
        return False
    assert says(found) == says(decode(text))
    assert says(found) == checked(text)
    return True


def values(datatype: str, count: int) -> str:
    texts = ORDINARY.get(datatype, ["1", "2", "3"])
    return "[" + ",".join(texts[n % len(texts)] for n in range(count)) + "]"


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [1, 3, 300])
def test_other_numbers_are_filled_in(datatype: str, count: int) -> None:
    plan = plan_of(body(tensor("A", datatype, [count], values(datatype, count))))
    one = "false" if datatype == "BOOL" else "5"
    other = "[" + ",".join([one] * count) + "]"
    assert check_same(plan, body(tensor("A", datatype, [count], other)))
    for wrong in (
        f"{other[:-1]},{one}]",
        "[]",
        f"[{one},{one}]",
        other[:-1],
        f"[{other}]",
        other.replace(one, f'"{one}"'),
    ):
        assert plan.decode(body(tensor("A", datatype, [count], wrong))) is None


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [2, 300])
def test_every_way_of_writing_a_number(datatype: str, count: int) -> None:
    plan = plan_of(body(tensor("A", datatype, [count], values(datatype, count))))
    for at, number in product((0, 1), TEXTS):
        texts = [ORDINARY.get(datatype, ["1"])[0]] * count
        texts[at] = number
        text = body(tensor("A", datatype, [count], "[" + ",".join(texts) + "]"))
        if not check_same(plan, text):
            assert outcome(text) == checked(text)


def outcome(text: bytes) -> list[Any] | None:
    try:
        return says(decode(text))
    except NaiadError:
        return None


@pytest.mark.parametrize("shape", [[2, 3], [1, 6], [6, 1], [1, 2, 3], [1, 1, 1, 6]])
def test_lists_in_lists(shape: list[int]) -> None:
    data = np.arange(6, dtype=np.float32).reshape(shape)
    plan = plan_of(
        body(tensor("A", "FP32", shape, json.dumps(data.tolist())), tensor("B", "INT8", [1], "[1]"))
    )
    assert check_same(
        plan,
        body(
            tensor("A", "FP32", shape, json.dumps((data * 2.5).tolist())),
            tensor("B", "INT8", [1], "[2]"),
        ),
    )
    for wrong in (
        "[1,2,3,4,5,6]",
        "[[1,2,3],4,5,6]",
        "[[1,2,3,4,5,6]",
        "[[1,2,3][4,5,6]]",
        "[[],[1,2,3,4,5,6]]",
        "[[[[[1,2,3,4,5,6]]]]]",
    ):
        text = body(tensor("A", "FP32", shape, wrong), tensor("B", "INT8", [1], "[2]"))
        check_same(plan, text)
        assert outcome(text) == checked(text)


def test_lists_that_are_too_deep_are_read_as_ever() -> None:
    for depth in (15, 16, 17, 30, 96, 97, 98, 200):
        text = body(tensor("A", "FP32", [1], "[" * depth + "1" + "]" * depth))
        for _ in range(2):
            assert outcome(text) == checked(text)


@pytest.mark.parametrize(
    "text",
    [
        body(tensor("A", "BYTES", [1], '["x"]')),
        body('{"name":"A","datatype":"FP32","shape":[1],"data":[1],"data":[2]}'),
        body('{"name":"A","datatype":"FP32","shape":[1],"d\\u0061ta":[2]}'),
        body('{"name":"\\"data\\":[2]","datatype":"FP32","shape":[1],"data":[2]}'),
        body(tensor("A", "FP32", [1], "[1]"), end=',"parameters":{"priority":1}'),
        body(tensor("A", "FP32", [1], "[1]"), end=',"id":"x"'),
        body(tensor("A", "FP32", [1], "[1]"), start='"id":"x","id":"y",'),
        body(tensor("A", "FP32", [1], "[1]"), start='"id":"a b",'),
        body(tensor("A", "FP32", [0], "[]")),
        body(tensor("A" * 5000, "FP32", [1], "[1]")),
        body(tensor("A", "FP32", [40_000], values("FP32", 40_000))),
    ],
)
def test_requests_without_a_plan(text: bytes) -> None:
    for _ in range(2):
        assert DECODER.decode(text)[1] is None
    assert outcome(text) is not None


def test_a_list_that_looks_like_another_one() -> None:
    plan = plan_of(
        body(tensor("data", "INT64", [2], "[2, 2]"), tensor("B", "INT64", [2], "[2, 2]"))
    )
    assert check_same(
        plan, body(tensor("data", "INT64", [2], "[3, 4]"), tensor("B", "INT64", [2], "[5, 6]"))
    )
    assert not check_same(
        plan, body(tensor("data", "INT64", [3], "[3, 4]"), tensor("B", "INT64", [2], "[5, 6]"))
    )


def test_requests_with_one_signature_share_a_plan_and_others_do_not() -> None:
    texts = [body(tensor("A", "FP32", [2], data)) for data in ("[1,2]", "[3,4.5]", "[ 1 ,\n2 ]")]
    first = plan_of(texts[0])
    assert all(plan_of(text) is first for text in texts)
    others = [
        body(tensor("B", "FP32", [2], "[1,2]")),
        b" " + texts[0],
        texts[0] + b"\n",
        body(tensor("A", "FP64", [2], "[1,2]")),
    ]
    others.append(body(tensor("A", "FP32", [2], "[1,2]"), end=',"outputs":[{"name":"O"}]'))
    for text in others:
        assert plan_of(text) is not first
        assert first.decode(text) is None
    assert DECODER.decode(texts[0], version="1")[1] is not first
    assert plan_of(texts[0], Decoder()) is not first, "of another copy of the model"


def test_with_ids() -> None:
    texts = [
        body(tensor("A", "FP32", [2], "[1,2]"), start=f'"id": "{id}",') for id in ("1", "22", "a.b")
    ]
    plan = plan_of(texts[0])
    assert all(check_same(plan, text) for text in texts)
    without = body(tensor("A", "FP32", [2], "[1,2]"))
    assert plan.decode(without) is None
    assert plan_of(without).decode(texts[0]) is None
    for id in ('a\\"b', "ü", "a b", "x" * 129, ""):
        text = body(tensor("A", "FP32", [2], "[1,2]"), start=f'"id": "{id}",')
        assert not check_same(plan, text)
        assert outcome(text) == checked(text)


NUMBER = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(-200, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(TEXTS),
)
SPACE = st.sampled_from(["", "", "", " ", "\n ", "\t"])


@st.composite
def documents(draw: st.DrawFn, datatypes: list[str], counts: list[int], tail: str) -> bytes:
    """Documents of one signature, with varying spaces. Most are valid."""
    tensors = []
    for n, (datatype, count) in enumerate(zip(datatypes, counts, strict=True)):
        ordinary = st.sampled_from(ORDINARY.get(datatype, ["0", "1", "100"]))
        texts = draw(
            st.lists(
                ordinary if draw(st.integers(0, 3)) else NUMBER, min_size=count, max_size=count
            )
        )
        if draw(st.integers(0, 9)) == 0:
            texts = texts[1:]
        space = draw(SPACE)
        data = f"[{space}" + f"{space},".join(texts) + f"{draw(SPACE)}]"
        if draw(st.integers(0, 5)) == 0:
            data = f"[{data}]"
        tensors.append(tensor(f"T{n}", datatype, [count], data))
    return body(*tensors, end=tail)


@given(st.data())
def test_any_body_is_what_it_is_on_the_full_path(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    datatypes = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=count, max_size=count))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    tail = data.draw(
        st.sampled_from(
            ["", ',"outputs":[{"name":"O"}]', ',"parameters":{"binary_data_output":false}']
        )
    )
    plan = plan_of(
        body(
            *(
                tensor(f"T{n}", d, [c], values(d, c))
                for n, (d, c) in enumerate(zip(datatypes, counts, strict=True))
            ),
            end=tail,
        )
    )
    text = data.draw(documents(datatypes, counts, tail))
    for _ in range(data.draw(st.integers(0, 2))):
        at, width = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 2))
        text = (
            text[:at]
            + data.draw(
                st.sampled_from(
                    [b"", b"]", b"[", b",", b'"', b"1", b"e", b"}", b"\\", b" ", b"\xff", b"-"]
                )
            )
            + text[at + width :]
        )
    if check_same(plan, text):
        assert all(
            len(t.data) == c * DATATYPES[d].byte_size
            for t, d, c in zip(plan_inputs(plan, text), datatypes, counts, strict=True)
        )
    else:
        assert outcome(text) == checked(text)


def plan_inputs(plan: JsonPlan, text: bytes) -> list[Tensor]:
    request = plan.decode(text)
    assert request is not None
    return request.inputs
