"""Inference requests over HTTP: what they become, and Triton's words for those that cannot be
read."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.datatype import DATATYPES
from naiad.core.request import InferRequest
from naiad.core.tensor import tensor_from_numpy
from naiad.errors import Code, NaiadError
from naiad.protocol.v2 import json_codec
from naiad.protocol.v2.output_format import BINARY_FORMAT, JSON_FORMAT, OutputFormat, OutputFormats

MAX_BYTES = 1 << 20


def decode(
    body: Any, length: int | None = None, max_bytes: int = MAX_BYTES
) -> tuple[InferRequest, OutputFormats]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json_codec.decode_request(data, length, "m", "", max_bytes)[:2]


def tensor(**fields: Any) -> dict[str, Any]:
    given = {"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]} | fields
    return {key: value for key, value in given.items() if value is not ...}


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def binary(tail: bytes, *inputs: dict[str, Any], **more: Any) -> tuple[InferRequest, OutputFormats]:
    header = json.dumps({"inputs": list(inputs), **more}).encode()
    return decode(header + tail, len(header))


def sized(size: Any, **fields: Any) -> dict[str, Any]:
    return tensor(data=..., parameters={"binary_data_size": size}, **fields)


# What is understood.


def test_json_tensors() -> None:
    request, formats = decode(
        {
            "id": "7",
            "inputs": [tensor(), tensor(name="B", datatype="INT8", shape=[1, 3], data=[1, -2, 3])],
        }
    )
    assert (request.model_name, request.model_version, request.id) == ("m", "", "7")
    a, b = request.inputs
    assert (a.name, a.datatype, a.shape, bytes(a.data)) == (
        "IN",
        "FP32",
        [2],
        struct.pack("<2f", 1, 2),
    )
    assert (b.name, b.datatype, b.shape, bytes(b.data)) == ("B", "INT8", [1, 3], b"\x01\xfe\x03")
    assert (formats.default, formats.by_name) == (JSON_FORMAT, None)


def test_binary_tensors_are_views_of_the_body() -> None:
    header = json.dumps({"inputs": [sized(4, shape=[1]), sized(8, name="B")]}).encode()
    body = bytearray(header + b"aaaabbbbbbbb")
    request = json_codec.decode_request(body, len(header), "m", "", MAX_BYTES).request
    body[-1:] = b"!"
    assert bytes(request.inputs[0].data) == b"aaaa"
    assert bytes(request.inputs[1].data) == b"bbbbbbb!"


def test_json_and_binary_tensors_in_one_request() -> None:
    request, _ = binary(b"\1\0\0\0", tensor(name="A"), sized(4, shape=[1], name="B"))
    assert [bytes(each.data) for each in request.inputs] == [struct.pack("<2f", 1, 2), b"\1\0\0\0"]


@pytest.mark.parametrize("data", [[[1], [2]], [[1, 2]], [[1, [2]]], [1, [2]], [[], [1, 2]]])
def test_nested_data(data: Any) -> None:
    request, _ = decode({"inputs": [tensor(data=data)]})
    assert bytes(request.inputs[0].data) == struct.pack("<2f", 1, 2)


def test_nan_and_infinity() -> None:
    request, _ = decode(
        b'{"inputs":[{"name":"IN","shape":[3],"datatype":"FP32","data":[NaN,Infinity,-Inf]}]}'
    )
    values = request.inputs[0].as_numpy()
    assert np.isnan(values[0])
    assert values[1:].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    "fields", [{"foo": 1}, {"parameters": {}}, {"parameters": {"foo": 8}}, {"parameters": 5}]
)
def test_unknown_fields_are_ignored(fields: dict[str, Any]) -> None:
    request, _ = decode({"inputs": [tensor(**fields)], "more": [1]})
    assert request.inputs[0].shape == [2]


def test_no_elements() -> None:
    for data in ([], [1, 2]):
        request, _ = decode({"inputs": [tensor(shape=[0], data=data)]})
        assert bytes(request.inputs[0].data) == b""


@pytest.mark.parametrize(
    ("datatype", "given", "read"),
    [
        ("UINT8", [255, 256, 2**40], [255, 0, 0]),
        ("INT8", [127, 128, 255, -129], [127, -128, -1, 127]),
        ("UINT16", [65536], [0]),
        ("INT32", [2**31, 2**32 - 1], [-(2**31), -1]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("FP32", [1e300, -1e300], [np.inf, -np.inf]),
        ("FP64", [2**64, 0.1], [float(2**64), 0.1]),
        ("BOOL", [True, False], [True, False]),
    ],
)
def test_values_at_the_edge(datatype: str, given: list[Any], read: list[Any]) -> None:
    request, _ = decode({"inputs": [tensor(datatype=datatype, shape=[len(given)], data=given)]})
    assert request.inputs[0].as_numpy().tolist() == read


def test_strings() -> None:
    texts = ["a", "é", "", "\0x", '\n\t"\\/\x01', "\U0001f600"]
    request, _ = decode({"inputs": [tensor(datatype="BYTES", shape=[6], data=texts)]})
    assert request.inputs[0].as_numpy().tolist() == [text.encode() for text in texts]


def test_strings_that_are_no_utf8_keep_their_bytes() -> None:
    request, _ = decode(
        b'{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","data":["\xff\xfe"]}]}'
    )
    assert request.inputs[0].as_numpy().tolist() == [b"\xff\xfe"]


def test_outputs() -> None:
    outputs = [
        {"name": "A"},
        {"name": "B", "parameters": {"binary_data": True}},
        {"name": "C", "parameters": {"classification": 3, "binary_data": True}},
        {"name": "D", "parameters": {"binary_data": False, "classification": 0}},
    ]
    expected = {"A": JSON_FORMAT, "B": BINARY_FORMAT, "C": OutputFormat(True, 3), "D": JSON_FORMAT}
    for extra in ({}, {"unknown": 1}):
        request, formats = decode({"inputs": [tensor()], "outputs": outputs, **extra})
        assert request.requested_outputs == ["A", "B", "C", "D"]
        assert formats.by_name == expected


@pytest.mark.parametrize("extra", [{}, {"unknown": 1}])
def test_binary_data_output_is_for_outputs_that_are_not_named(extra: dict[str, Any]) -> None:
    _, formats = decode({"inputs": [tensor()], "parameters": {"binary_data_output": True}, **extra})
    assert (formats.default, formats.by_name) == (BINARY_FORMAT, None)
    _, formats = decode(
        {
            "inputs": [tensor()],
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "OUT"}],
            **extra,
        }
    )
    assert formats.by_name == {"OUT": JSON_FORMAT}


@pytest.mark.parametrize("extra", [{}, {"unknown": 1}])
def test_parameters(extra: dict[str, Any]) -> None:
    reserved = {
        "sequence_id": 5,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout": 2**63,
    }
    own = {"a": 1, "b": "s", "c": True, "d": 1.5, "e": -5, "": 0, "f": 2**63, "headers": "x"}
    request, _ = decode({"inputs": [tensor()], "parameters": reserved | own, **extra})
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (5, True, True)
    assert (request.priority, request.timeout_us) == (3, 2**63)
    assert request.parameters == own | {"f": float(2**63)}
    assert isinstance(request.parameters["f"], float)
    assert request.parameters["c"] is True


def test_a_sequence_may_have_a_name() -> None:
    request, _ = decode({"inputs": [tensor()], "parameters": {"sequence_id": "abc"}})
    assert request.sequence_id == "abc"


def test_text_that_is_no_utf8_is_made_so_where_it_must_travel_on() -> None:
    request, _ = decode(b'{"id":"\xff","inputs":[],"parameters":{"a":"\xc3("}}')
    assert request.id.isprintable()
    for text in (request.id, request.parameters["a"]):
        assert isinstance(text, str)
        text.encode()


# What is refused, and how.

NO_INPUTS = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"

BODIES: list[tuple[Any, Code, str]] = [
    (b"[]", Code.INTERNAL, NO_INPUTS),
    (b"1", Code.INTERNAL, NO_INPUTS),
    (b"null", Code.INTERNAL, NO_INPUTS),
    (b"{}", Code.INTERNAL, NO_INPUTS),
    (
        {"inputs": 1},
        Code.INTERNAL,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    (
        {"inputs": None},
        Code.INTERNAL,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    ({"inputs": [1]}, Code.INVALID_ARG, SOURCES + "no field is set"),
    ({"inputs": [{}]}, Code.INVALID_ARG, SOURCES + "no field is set"),
    (
        {"id": 5, "inputs": [tensor()]},
        Code.INTERNAL,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    (
        {"id": None, "inputs": [tensor()]},
        Code.INTERNAL,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    (
        {"inputs": [tensor()], "outputs": 5},
        Code.INTERNAL,
        "Unable to parse 'outputs': attempt to access JSON non-array as array",
    ),
    (
        {"inputs": [tensor()], "outputs": [5]},
        Code.INTERNAL,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        {"inputs": [tensor()], "parameters": 5},
        Code.INTERNAL,
        "failed to get request params.: attempt to get members for non-object",
    ),
    (
        {"inputs": [tensor()], "parameters": None},
        Code.INTERNAL,
        "failed to get request params.: attempt to get members for non-object",
    ),
    (b'{"inputs":', Code.INTERNAL, "failed to parse the request JSON buffer: Invalid value. at 10"),
    (
        b"{" + b'"a":[' * 1,
        Code.INTERNAL,
        "failed to parse the request JSON buffer: Invalid value. at 6",
    ),
]

NOT_STRING = "attempt to access JSON non-string as string"
NOT_ARRAY = "Unable to parse 'data': attempt to access JSON non-array as array"
TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"
TOO_LARGE = (
    "JSON input 'IN' has a byte_size ({} bytes) that exceeds the maximum allowed value of "
    f"{MAX_BYTES} bytes. Use --http-max-input-size to increase the limit."
)
TENSORS: list[tuple[dict[str, Any], Code, str]] = [
    (
        {"name": ...},
        Code.INTERNAL,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        {"name": 5},
        Code.INTERNAL,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    (
        {"datatype": ...},
        Code.INTERNAL,
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    (
        {"datatype": 5},
        Code.INTERNAL,
        "Unable to parse 'datatype': attempt to access JSON non-string as string",
    ),
    ({"datatype": "FOO"}, Code.INVALID_ARG, "invalid datatype for input IN"),
    ({"datatype": "fp32"}, Code.INVALID_ARG, "invalid datatype for input IN"),
    (
        {"shape": ...},
        Code.INTERNAL,
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    (
        {"shape": 2},
        Code.INTERNAL,
        "Unable to parse 'shape': attempt to access JSON non-array as array",
    ),
    ({"shape": ["a"]}, Code.INTERNAL, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    ({"shape": [2.0]}, Code.INTERNAL, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    ({"shape": [-2]}, Code.INTERNAL, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    # Triton keeps dimensions in signed numbers of 64 bits.
    (
        {"shape": [1, 2**63]},
        Code.INVALID_ARG,
        f"invalid shape for input 'IN': shape [1,{-(2**63)}] contains one or more invalid "
        "dimensions",
    ),
    ({"shape": [2**64 - 1]}, Code.INVALID_ARG, TOO_LARGE.format(2**64 - 4)),
    # The number of elements is checked first, then the number of bytes, then the limit.
    (
        {"shape": [2**4, 2**60 + 2]},
        Code.INVALID_ARG,
        f"invalid shape for input 'IN': shape [16,{2**60 + 2}] causes total element count to "
        "exceed maximum size of 9223372036854775807",
    ),
    (
        {"shape": [2**62, 2**62], "datatype": "BYTES", "data": ["a"]},
        Code.INVALID_ARG,
        f"invalid shape for input 'IN': shape [{2**62},{2**62}] causes total element count to "
        "exceed maximum size of 9223372036854775807",
    ),
    (
        {"shape": [2**2, 2**60 + 2]},
        Code.INVALID_ARG,
        f"byte size overflow for input 'IN': element count ({2**62 + 8}) * data type size (4) "
        "exceeds maximum allowed size (9223372036854775807)",
    ),
    ({"shape": [2**2, 2**58]}, Code.INVALID_ARG, TOO_LARGE.format(2**62)),
    ({"shape": [2**60], "datatype": "INT8"}, Code.INVALID_ARG, TOO_LARGE.format(2**60)),
    ({"shape": [2**60], "datatype": "FP16"}, Code.INVALID_ARG, TOO_LARGE.format(2**61)),
    ({"shape": [2**60], "data": 5}, Code.INTERNAL, NOT_ARRAY),
    ({"shape": [2**64]}, Code.INTERNAL, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (
        {"shape": [1]},
        Code.INVALID_ARG,
        "Unable to parse 'data': Shape does not match true shape of 'data' field: expected 1 "
        "values for input 'IN', got 2",
    ),
    # Triton's text ends before the counts, and its status is 500.
    (
        {"shape": [3]},
        Code.INVALID_ARG,
        "Failed to parse 'data' field: shape does not match true shape: expected 3 values for "
        "input 'IN', got 2",
    ),
    # A value of the wrong type is found before the count is.
    (
        {"shape": [3], "data": [1, "2"]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    ({"data": nested(1, 100)}, Code.INVALID_ARG, TOO_DEEP),
    ({"data": nested("a", 100), "datatype": "BYTES"}, Code.INVALID_ARG, TOO_DEEP),
    ({"name": nested(1, 500)}, Code.INTERNAL, "Unable to parse 'name': " + NOT_STRING),
    ({"shape": nested(1, 500)}, Code.INTERNAL, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    (
        {"data": [10**400, 1]},
        Code.INVALID_ARG,
        "Unable to parse 'data': Number too big to be stored in double.",
    ),
    ({"data": ...}, Code.INVALID_ARG, SOURCES + "no field is set"),
    (
        {"data": 5},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    (
        {"data": None},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    (
        {"data": {}},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    (
        {"data": ["1", "2"]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        {"data": [True, False]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        {"data": [None, 1]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        {"data": [[1], [{}]]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        {"datatype": "INT32", "data": [1.0, 1]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        {"datatype": "INT64", "data": [2**63, 1]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        {"datatype": "INT8", "data": [True, 1]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        {"datatype": "UINT8", "data": [-1, 1]},
        Code.INTERNAL,
        f"Unable to parse 'data': {NOT_UNSIGNED}",
    ),
    (
        {"datatype": "UINT64", "data": [2**64, 1]},
        Code.INTERNAL,
        f"Unable to parse 'data': {NOT_UNSIGNED}",
    ),
    (
        {"datatype": "BOOL", "data": [1, 0]},
        Code.INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"datatype": "BYTES", "data": [1, "a"]},
        Code.INTERNAL,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        {"datatype": "FP16"},
        Code.INVALID_ARG,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for "
        "input IN",
    ),
    (
        {"datatype": "BF16"},
        Code.INVALID_ARG,
        "receiving BF16 data via JSON is not supported. Please use the binary data format for "
        "input IN",
    ),
    (
        {"parameters": {"binary_data_size": 8}},
        Code.INVALID_ARG,
        SOURCES + "set 'data' 'binary_data_size'",
    ),
    (
        {"parameters": {"shared_memory_region": "x"}},
        Code.INVALID_ARG,
        SOURCES + "set 'data' 'shared_memory_region'",
    ),
    (
        {"data": ..., "parameters": {"binary_data_size": 8, "shared_memory_region": "x"}},
        Code.INVALID_ARG,
        SOURCES + "set 'binary_data_size' 'shared_memory_region'",
    ),
    (
        {"data": ..., "parameters": {"shared_memory_region": 5}},
        Code.INTERNAL,
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
    ),
    (
        {"data": ..., "parameters": {"binary_data_size": "8"}},
        Code.INTERNAL,
        f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}",
    ),
    (
        {"data": ..., "parameters": {"binary_data_size": -8}},
        Code.INTERNAL,
        f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}",
    ),
    (
        {"data": ..., "parameters": {"binary_data_size": 8}},
        Code.INVALID_ARG,
        "unexpected size for input 'IN', expecting 8 additional bytes for model 'm'",
    ),
]

OUTPUTS: list[tuple[list[Any], Code, str]] = [
    (
        [{}],
        Code.INTERNAL,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        [{"name": 5}],
        Code.INTERNAL,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    (
        [{"name": "A"}, {"name": "A"}],
        Code.INVALID_ARG,
        "[request id: <id_unknown>] output 'A' already exists in request",
    ),
    (
        [{"name": "A"}, {"name": "A", "x": 1}],
        Code.INVALID_ARG,
        "[request id: <id_unknown>] output 'A' already exists in request",
    ),
    (
        [{"name": "A", "parameters": {"binary_data": 1}}],
        Code.INTERNAL,
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    (
        [{"name": "A", "parameters": {"classification": -1}}],
        Code.INTERNAL,
        f"Unable to set 'classification': {NOT_UNSIGNED}",
    ),
    (
        [{"name": "A", "parameters": {"classification": "1"}}],
        Code.INTERNAL,
        f"Unable to set 'classification': {NOT_UNSIGNED}",
    ),
    (
        [{"name": "A", "parameters": {"shared_memory_region": "x", "classification": 1}}],
        Code.INVALID_ARG,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        [{"name": "A", "parameters": {"shared_memory_region": "x", "binary_data": True}}],
        Code.INVALID_ARG,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
]

WRONG_TYPE = "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
    "specified."
)
PARAMETERS: list[tuple[dict[str, Any], Code, str]] = [
    ({"a": None}, Code.INVALID_ARG, WRONG_TYPE),
    ({"a": [1]}, Code.INVALID_ARG, WRONG_TYPE),
    ({"a": {}}, Code.INVALID_ARG, WRONG_TYPE),
    ({"a": 10**400}, Code.INVALID_ARG, WRONG_TYPE),
    ({"triton_x": 1}, Code.INVALID_ARG, RESERVED),
    (
        {"sequence_id": -1},
        Code.INTERNAL,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        {"sequence_id": 1.5},
        Code.INTERNAL,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        {"sequence_id": True},
        Code.INTERNAL,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        {"sequence_id": "x" * 129},
        Code.UNSUPPORTED,
        "string correlation ID cannot be longer than 128 characters",
    ),
    (
        {"sequence_start": 1},
        Code.INTERNAL,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"sequence_end": "x"},
        Code.INTERNAL,
        "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
    ),
    ({"priority": -1}, Code.INTERNAL, f"Unable to parse 'priority': {NOT_UNSIGNED}"),
    ({"timeout": "5"}, Code.INTERNAL, f"Unable to parse 'timeout': {NOT_UNSIGNED}"),
    (
        {"binary_data_output": 1},
        Code.INTERNAL,
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
    ),
]


def check_refused(body: Any, code: Code, words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        decode(body)
    assert (caught.value.code, caught.value.message) == (code, words)


@pytest.mark.parametrize(("body", "code", "words"), BODIES)
def test_bodies_that_are_refused(body: Any, code: Code, words: str) -> None:
    check_refused(body, code, words)


@pytest.mark.parametrize(("fields", "code", "words"), TENSORS)
def test_inputs_that_are_refused(fields: dict[str, Any], code: Code, words: str) -> None:
    check_refused({"inputs": [tensor(**fields)]}, code, words)


@pytest.mark.parametrize(("outputs", "code", "words"), OUTPUTS)
def test_outputs_that_are_refused(outputs: list[Any], code: Code, words: str) -> None:
    check_refused({"inputs": [tensor()], "outputs": outputs}, code, words)


@pytest.mark.parametrize("extra", [{}, {"unknown": 1}], ids=["typed", "checked"])
@pytest.mark.parametrize(("parameters", "code", "words"), PARAMETERS)
def test_parameters_that_are_refused(
    parameters: dict[str, Any], code: Code, words: str, extra: dict[str, Any]
) -> None:
    check_refused({"inputs": [tensor()], "parameters": parameters, **extra}, code, words)


@pytest.mark.parametrize("extra", [{}, {"unknown": 1}], ids=["typed", "checked"])
@pytest.mark.parametrize(
    ("tail", "size", "words"),
    [
        (b"1234", 8, "unexpected size for input 'IN', expecting 4 additional bytes for model 'm'"),
        (
            b"",
            2**62,
            f"unexpected size for input 'IN', expecting {2**62} additional bytes for model 'm'",
        ),
        (b"123456789", 8, "unexpected additional input data for model 'm'"),
        (b"x", 0, "unexpected additional input data for model 'm'"),
    ],
)
def test_binary_data_must_fit(tail: bytes, size: int, words: str, extra: dict[str, Any]) -> None:
    with pytest.raises(NaiadError) as caught:
        binary(tail, sized(size), **extra)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, words)


def test_size_limits() -> None:
    body = json.dumps({"inputs": [tensor(datatype="FP64", shape=[10], data=[1] * 10)]}).encode()
    assert decode(body, max_bytes=200)
    with pytest.raises(NaiadError) as caught:
        decode(body, max_bytes=len(body) - 1)
    assert caught.value.message == (
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
        f"{len(body) - 1} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    dense = (
        b'{"inputs":[{"name":"IN","datatype":"FP64","shape":[60],"data":[' + b"1," * 59 + b"1]}]}"
    )
    with pytest.raises(NaiadError) as caught:
        decode(dense, max_bytes=300)
    assert caught.value.message == (
        "JSON input 'IN' has a byte_size (480 bytes) that exceeds the maximum allowed value of "
        "300 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("shape", [[2**62, 0], [0, 2**62, 2**62], []])
def test_data_of_a_tensor_without_elements_is_ignored(shape: list[int]) -> None:
    for datatype in ("FP32", "FP16", "BYTES"):
        request, _ = decode({"inputs": [tensor(shape=shape, datatype=datatype, data=[1])]})
        assert (request.inputs[0].shape, request.inputs[0].data) == (shape, b"")


def test_data_may_be_nested_in_99_lists() -> None:
    for datatype, value, data in (("INT32", 7, b"\7\0\0\0"), ("BYTES", "a", b"\1\0\0\0a")):
        request, _ = decode(
            {"inputs": [tensor(shape=[1], datatype=datatype, data=nested(value, 99))]}
        )
        assert request.inputs[0].data == data


# Both decoders agree.

NUMBERS = {
    name: kind.numpy
    for name, kind in DATATYPES.items()
    if kind.numpy is not None and name not in ("BYTES", "FP16")
}


@given(st.sampled_from(sorted(NUMBERS)), st.binary(max_size=96))
def test_any_values_survive_json(datatype: str, data: bytes) -> None:
    kind = NUMBERS[datatype]
    octets = data[: len(data) // kind.itemsize * kind.itemsize]
    array = (
        np.frombuffer(octets, kind)
        if datatype != "BOOL"
        else np.frombuffer(octets, np.uint8) % 2 == 1
    )
    finite = array[np.isfinite(array)] if datatype.startswith("FP") else array
    if not len(finite):
        return
    sent = {"inputs": [tensor(datatype=datatype, shape=[len(finite)], data=finite.tolist())]}
    plain, _ = decode(sent)
    checked, _ = decode({**sent, "unknown": 1})
    assert (
        bytes(plain.inputs[0].data)
        == bytes(checked.inputs[0].data)
        == tensor_from_numpy("IN", finite).data
    )


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_survives_json(texts: list[str]) -> None:
    sent = {"inputs": [tensor(datatype="BYTES", shape=[len(texts)], data=texts)]}
    plain, _ = decode(sent)
    assert plain.inputs[0].as_numpy().tolist() == [text.encode() for text in texts]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "name",
                        "datatype",
                        "shape",
                        "data",
                        "inputs",
                        "outputs",
                        "parameters",
                        "id",
                        "binary_data_size",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_a_request_or_an_error(document: Any) -> None:
    try:
        request, _ = decode(document)
    except NaiadError:
        return
    assert all(tensor.datatype in DATATYPES for tensor in request.inputs)
