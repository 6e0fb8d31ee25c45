"""Inference responses over HTTP: JSON as Triton writes it, binary data behind it."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import NaiadError
from naiad.protocol.v2 import json_codec, json_tensor
from naiad.protocol.v2.output_format import (
    ALL_BINARY,
    ALL_JSON,
    BINARY_FORMAT,
    JSON_FORMAT,
    OutputFormats,
)

SPEC = ModelSpec("m", 1, [1], "", 0, {}, {})


def encode(
    *tensors: Tensor, formats: OutputFormats = ALL_JSON, **more: object
) -> tuple[bytes, bytes]:
    """Headers and body."""
    response = InferResponse("m", "1", "", list(tensors))
    for name, value in more.items():
        setattr(response, name, value)
    encoded = json_codec.encode_response(response, formats, SPEC)
    body = b"".join(encoded.parts)
    assert encoded.size == len(body)
    return encoded.headers, body


def fp32(*values: float, name: str = "OUT") -> Tensor:
    return Tensor(name, "FP32", [len(values)], struct.pack(f"<{len(values)}f", *values))


def test_json() -> None:
    headers, body = encode(fp32(1, 2.5))
    assert headers == b"Content-Type: application/json\r\n"
    assert (
        body == b'{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32",'
        b'"shape":[2],"data":[1.0,2.5]}]}'
    )


def test_key_order_and_what_is_left_out() -> None:
    _, body = encode(id='a"b', parameters={"x": 1, "y": True, "z": "s", "w": 0.5})
    assert body == (
        b'{"id":"a\\"b","model_name":"m","model_version":"1","parameters":{"x":1,"y":true,"z":"s","w":0.5},"outputs":[]}'
    )


def test_floats_are_written_as_the_doubles_they_are() -> None:
    _, body = encode(fp32(0.1, -0.0, 16777217))
    assert b'"data":[0.10000000149011612,-0.0,16777216.0]' in body


def test_nan_and_infinity() -> None:
    _, body = encode(
        fp32(float("nan"), float("inf"), float("-inf")), Tensor("S", "BYTES", [1], b"\4\0\0\0null")
    )
    assert b'"data":[NaN,Infinity,-Infinity]' in body
    assert b'"data":["null"]' in body


def test_binary() -> None:
    headers, body = encode(
        fp32(1, name="A"), Tensor("B", "BYTES", [1], bytearray(b"\1\0\0\0x")), formats=ALL_BINARY
    )
    text, tail = body[:-9], body[-9:]
    assert tail == struct.pack("<f", 1) + b"\1\0\0\0x"
    assert (
        headers
        == b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
        % len(text)
    )
    assert [output["parameters"] for output in json.loads(text)["outputs"]] == [
        {"binary_data_size": 4},
        {"binary_data_size": 5},
    ]


def test_mixed_forms_and_outputs_that_were_not_asked_for() -> None:
    formats = OutputFormats(JSON_FORMAT, {"A": JSON_FORMAT, "B": BINARY_FORMAT})
    _, body = encode(fp32(1, name="A"), fp32(2, name="B"), fp32(3, name="C"), formats=formats)
    outputs = json.loads(body[:-4])["outputs"]
    assert outputs == [
        {"name": "A", "datatype": "FP32", "shape": [1], "data": [1.0]},
        {"name": "B", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    assert body[-4:] == struct.pack("<f", 2)


def test_binary_output_without_a_byte_is_plain_json() -> None:
    headers, body = encode(Tensor("OUT", "FP32", [0], b""), formats=ALL_BINARY)
    assert headers == b"Content-Type: application/json\r\n"
    assert json.loads(body)["outputs"] == [
        {"name": "OUT", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


def test_strings() -> None:
    elements = [b"a", "é".encode(), b"\0", b"\xff\xfe"]
    _, body = encode(tensor_from_numpy("OUT", np.array(elements, object)))
    assert b'"data":["a","\xc3\xa9","\\u0000","\xff\xfe"]' in body


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_types_without_a_json_format(datatype: str) -> None:
    tensor = Tensor("OUT", datatype, [1], b"\0\0")
    with pytest.raises(NaiadError) as caught:
        encode(tensor)
    assert (
        caught.value.message
        == f"sending {datatype} data via JSON is not supported. Please use the binary data "
        "format for output OUT"
    )
    assert encode(tensor, formats=ALL_BINARY)[1].endswith(b"}\0\0")


NUMBERS = {
    name: kind.numpy
    for name, kind in DATATYPES.items()
    if kind.numpy is not None and name not in ("BYTES", "FP16")
}


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 256, 257])
def test_values_of_every_type(datatype: str, count: int) -> None:
    array = np.arange(count).astype(NUMBERS[datatype])
    data = array.tobytes()
    for buffer in (data, bytearray(data), memoryview(data)):
        _, body = encode(Tensor("OUT", datatype, [count], buffer))
        assert json.loads(body)["outputs"][0]["data"] == array.tolist()


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_any_floats_survive(values: list[float]) -> None:
    _, body = encode(fp32(*values))
    read = json.loads(body)["outputs"][0]["data"]
    assert struct.pack(f"<{len(values)}f", *read) == struct.pack(f"<{len(values)}f", *values)


@given(st.lists(st.binary(max_size=10), max_size=5))
def test_any_bytes_survive(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    _, body = encode(tensor_from_numpy("OUT", array))
    read = json.loads(body.decode("utf-8", "surrogateescape"))["outputs"][0]["data"]
    assert [text.encode("utf-8", "surrogateescape") for text in read] == elements


LONG = [
    "ä€𝄞".encode() * 9, b"\x80\x81\x82\x83\x84" * 7, b"null" * 9, b'a"\\\n' * 9, b"x" * 65,
    b"\xf0\x9f" * 11, b"", b"short", b"x" * 16, b"x" * 17,
]  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [4, 5, 7, 16, 64])
@pytest.mark.parametrize("order", [LONG, LONG[::-1], LONG[2:] * 300])
def test_long_texts_are_written_in_parts(
    order: list[bytes], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between characters, and equal to what is written at once."""
    monkeypatch.setattr(json_tensor, "PIECE_BYTES", piece_bytes)
    data = encode_byte_strings(order)
    response = InferResponse("m", "1", "", [Tensor("OUT", "BYTES", [len(order)], data)])
    whole = json_codec.encode_response(response, ALL_JSON, SPEC)
    large = json_codec.encode_large_response(response, ALL_JSON, SPEC)
    assert b"".join(map(bytes, large.parts)) == b"".join(map(bytes, whole.parts))
    assert large.size == whole.size


def test_no_part_of_a_long_text_is_long() -> None:
    """A step that makes one JSON string of 200 MB held the interpreter for half a second."""
    data = encode_byte_strings([b"x" * (5 << 20), *[b"y" * 700_000] * 9])
    response = InferResponse("m", "1", "", [Tensor("OUT", "BYTES", [10], data)])
    parts = json_codec.encode_large_response(response, ALL_JSON, SPEC).parts
    assert max(map(len, parts)) <= 2 * json_tensor.PIECE_BYTES
