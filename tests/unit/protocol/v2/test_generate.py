"""The generate extension: flat JSON to tensors and back. Words as a genuine Triton has them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import Code, NaiadError
from naiad.protocol.v2.generate import decode_request, encode_event, encode_response


def spec(max_batch_size: int = 0, **inputs: tuple[str, list[int]]) -> ModelSpec:
    tensors = {
        name: TensorSpec(name, datatype, dims, dims) for name, (datatype, dims) in inputs.items()
    }
    return ModelSpec("m", 1, [1], "", max_batch_size, tensors, {})


TEXT = spec(
    4,
    text_input=("BYTES", [1]),
    max_tokens=("INT32", [1]),
    words=("BYTES", [-1]),
    stream=("BOOL", [1]),
)


def decode(body: Any, model: ModelSpec = TEXT, max_bytes: int = 10_000) -> InferRequest:
    return decode_request(
        body if isinstance(body, bytes) else json.dumps(body).encode(), model, "2", max_bytes
    )


def tensors(request: InferRequest) -> dict[str, tuple[list[int], Any]]:
    return {tensor.name: (tensor.shape, tensor.as_numpy().tolist()) for tensor in request.inputs}


def test_inputs_parameters_and_id() -> None:
    request = decode(
        {
            "text_input": "hi",
            "max_tokens": 5,
            "stream": True,
            "temperature": 0.5,
            "a": 1,
            "b": "x",
            "c": False,
            "id": "7",
        }
    )
    assert tensors(request) == {
        "text_input": ([1, 1], [[b"hi"]]),
        "max_tokens": ([1, 1], [[5]]),
        "stream": ([1, 1], [[True]]),
    }
    assert request.parameters == {"temperature": 0.5, "a": 1, "b": "x", "c": False}
    assert (request.id, request.model_name, request.model_version) == ("7", "m", "2")


def test_nested_parameters() -> None:
    request = decode({"text_input": "hi", "parameters": {"max_tokens": 5, "q": 1, "id": "x"}})
    assert tensors(request)["max_tokens"] == ([1, 1], [[5]])
    assert request.parameters == {"q": 1, "id": "x"}
    assert request.id == ""


@pytest.mark.parametrize(
    ("value", "shape", "elements"),
    [
        ("z", [1, 1], [[b"z"]]),
        (["a", "b"], [1, 2], [[b"a", b"b"]]),
        ([], [1, 0], [[]]),
        ([["a"], ["b"]], [1, 2], [[b"a", b"b"]]),
    ],
)
def test_variable_dimension(value: Any, shape: list[int], elements: Any) -> None:
    assert tensors(decode({"words": value}))["words"] == (shape, elements)


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "count", "shape"),
    [
        ([2, -1], 0, 4, [2, 2]),
        ([2, -1], 0, 0, [2, 0]),
        ([-1, 2], 0, 4, [2, 2]),
        ([-1, -1], 4, 4, [1, 1, 4]),
        ([-1, -1], 4, 0, [1, 1, 0]),
        ([4], 8, 4, [1, 4]),
        ([4], 8, 8, [2, 4]),
        ([-1], 0, 3, [3]),
        ([1], 0, 1, [1]),
    ],
)
def test_shapes(dims: list[int], max_batch_size: int, count: int, shape: list[int]) -> None:
    request = decode({"IN": list(range(count))}, spec(max_batch_size, IN=("INT32", dims)))
    assert request.inputs[0].shape == shape


@pytest.mark.parametrize(
    ("dims", "value"),
    [
        ([2, -1], [1, 2, 3]),
        ([2, -1], 1),
        ([-1, 2], [1, 2, 3]),
        ([4], [1, 2]),
        ([4], [1] * 8),
        ([1], [1, 2]),
    ],
)
def test_counts_without_a_shape(dims: list[int], value: Any) -> None:
    with pytest.raises(NaiadError) as caught:
        decode({"IN": value}, spec(IN=("INT32", dims)))
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "The schema can not convert input 'IN' to tensor with proper shape",
    )


WRONG_TYPE = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ([], Code.INTERNAL, "attempt to get members for non-object"),
        (5, Code.INTERNAL, "attempt to get members for non-object"),
        (
            b"{bad",
            Code.INTERNAL,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        (
            b"",
            Code.INTERNAL,
            "failed to parse the request JSON buffer: The document is empty. at 0",
        ),
        (
            {"text_input": 5},
            Code.INTERNAL,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        (
            {"text_input": {}},
            Code.INTERNAL,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        (
            {"max_tokens": "5"},
            Code.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            {"max_tokens": [[1, 2]]},
            Code.INVALID_ARG,
            "Unable to parse 'data': Shape does not match true shape of 'data' field: expected 1 "
            "values for input 'max_tokens', got 2",
        ),
        (
            {"stream": 1},
            Code.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"id": 7},
            Code.INTERNAL,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        ({"foo": None}, Code.INVALID_ARG, WRONG_TYPE.format("foo")),
        ({"foo": [1]}, Code.INVALID_ARG, WRONG_TYPE.format("foo")),
        (
            {"parameters": 5},
            Code.INTERNAL,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object "
            "as object",
        ),
        (
            {"parameters": {"parameters": {}}},
            Code.INVALID_ARG,
            "Converting keyword: 'parameters': " + WRONG_TYPE.format("parameters"),
        ),
        (
            b'{"text_input":"a","stream":true,"text_input":"b"}',
            Code.INVALID_ARG,
            "[request id: <id_unknown>] input 'text_input' already exists in request",
        ),
        (
            {"text_input": "a", "parameters": {"text_input": "b"}},
            Code.INVALID_ARG,
            "Converting keyword: 'parameters': [request id: <id_unknown>] input 'text_input' "
            "already exists in request",
        ),
    ],
)
def test_refused(body: Any, code: Code, words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        decode(body)
    assert (caught.value.code, caught.value.message) == (code, words)


def test_a_name_that_is_only_mentioned_is_no_repetition() -> None:
    request = decode({"text_input": 'say "text_input"', "note": "text_input", "x": '"text_input"'})
    assert tensors(request)["text_input"] == ([1, 1], [[b'say "text_input"']])


def test_depth_is_limited_for_data_alone() -> None:
    deep: Any = "a"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(NaiadError, match=r"^JSON nesting depth exceeds maximum allowed limit"):
        decode({"words": deep})
    with pytest.raises(NaiadError) as caught:
        decode({"text_input": "a", "foo": deep})
    assert caught.value.message == WRONG_TYPE.format("foo")


@pytest.mark.parametrize("number", [b"1" * 310, b"1" * 5000, b"1e999", b"-1e999"])
@pytest.mark.parametrize("field", [b"foo", b"max_tokens", b"text_input"])
def test_numbers_that_are_too_large_are_the_clients_error(field: bytes, number: bytes) -> None:
    body = b'{"text_input":"text_input","%b":%b}' % (field, number)
    with pytest.raises(NaiadError) as caught:
        decode(body)
    if field == b"foo":
        assert caught.value.code is Code.INVALID_ARG


def test_an_input_may_be_called_id() -> None:
    request = decode({"id": "x"}, spec(id=("BYTES", [1])))
    assert tensors(request) == {"id": ([1], [b"x"])}
    assert request.id == ""


def test_an_input_may_not_be_called_parameters() -> None:
    with pytest.raises(
        NaiadError,
        match=r"^Keyword 'parameters' for nested schema also given as input tensor name$",
    ):
        decode({"parameters": "x"}, spec(parameters=("BYTES", [1])))


def test_size_limit() -> None:
    for value, size, kind in (
        (list(range(26)), 104, "INT32"),
        (["x"] * 26, 130, "BYTES"),
        # The size is checked before the data and the shape are.
        (["x"] * 26, 104, "INT32"),
    ):
        for dims in ([-1], [7]):
            with pytest.raises(NaiadError) as caught:
                decode({"IN": value}, spec(IN=(kind, dims)), max_bytes=100)
            assert caught.value.message == (
                f"request size of 0 bytes with input 'IN' of size {size} bytes exceeds the maximum "
                "allowed input size of 100. Use --http-max-input-size to increase the limit."
            )
    with pytest.raises(NaiadError) as caught:
        decode(
            {"A": list(range(20)), "B": list(range(20))},
            spec(A=("INT32", [-1]), B=("INT32", [-1])),
            max_bytes=100,
        )
    assert caught.value.message == (
        "request size of 80 bytes with input 'B' of size 80 bytes exceeds the maximum allowed "
        "input size of 100. "
        "Use --http-max-input-size to increase the limit."
    )


# Responses.


def test_response() -> None:
    outputs = [
        tensor_from_numpy("one", np.array([[b"x"]], object)),
        tensor_from_numpy("two", np.array([[1, 2]], np.int32)),
        tensor_from_numpy("none", np.array([], np.float32)),
        tensor_from_numpy("half", np.array([0.5], np.float64)),
    ]
    body = encode_response(InferResponse("m", "1", "7", outputs, {"p": 1}))
    assert (
        body == b'{"id":"7","model_name":"m","model_version":"1","p":1,"one":"x","two":[1,2],'
        b'"none":[],"half":0.5}'
    )


def test_nan_in_a_response() -> None:
    body = encode_response(
        InferResponse("m", "1", "", [tensor_from_numpy("x", np.array([0.1, np.nan], np.float32))])
    )
    assert body.endswith(b'"x":[0.10000000149011612,NaN]}')


def test_bytes_that_are_no_text() -> None:
    body = encode_response(
        InferResponse("m", "1", "", [Tensor("x", "BYTES", [1], b"\1\0\0\0\xff")])
    )
    assert body.endswith(b'"x":"\xff"}')


def test_event() -> None:
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
