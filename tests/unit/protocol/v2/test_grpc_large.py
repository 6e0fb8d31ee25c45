"""Large gRPC messages are taken apart by hand; upb is the judge of what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import NaiadError
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.protocol.v2 import grpc_codec, grpc_contents, grpc_large
from naiad.protocol.v2.grpc_request import build_template

CONTENTS = {
    "BOOL": ("bool_contents", st.booleans()),
    "INT8": ("int_contents", st.integers(-(2**31), 2**31 - 1)),
    "INT32": ("int_contents", st.integers(-(2**31), 2**31 - 1)),
    "INT64": ("int64_contents", st.integers(-(2**63), 2**63 - 1)),
    "UINT16": ("uint_contents", st.integers(0, 2**32 - 1)),
    "UINT64": ("uint64_contents", st.integers(0, 2**64 - 1)),
    "FP32": ("fp32_contents", st.floats(width=32, allow_nan=False)),
    "FP64": ("fp64_contents", st.floats(allow_nan=False)),
    "BYTES": ("bytes_contents", st.binary(max_size=9)),
}


def by_upb(data: bytes) -> Any:
    parsed = ModelInferRequest.FromString(data)
    template = build_template(parsed)
    return result(lambda: template.fill("", list(parsed.raw_input_contents)))


def by_hand(data: bytes) -> Any:
    return result(lambda: grpc_codec.decode_large_request(data)[0])


def result(decode: Any) -> Any:
    try:
        request = decode()
    except NaiadError as error:
        return error.code, error.message
    return (
        [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs],
        request.id,
        request.parameters,
        request.requested_outputs,
    )


@given(st.data(), st.sampled_from(sorted(CONTENTS)))
def test_typed_contents(data: st.DataObject, datatype: str) -> None:
    field, values = CONTENTS[datatype]
    request = ModelInferRequest(model_name="m", id="7")
    for name in "ab":
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[3])
        getattr(tensor.contents, field).extend(data.draw(st.lists(values, max_size=12)))
    request.outputs.add(name="out")
    request.parameters["p"].string_param = "x"
    message = request.SerializeToString()
    assert by_hand(message) == by_upb(message)


def test_contents_in_tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_contents, "_VARINT_SLICE_BYTES", 11)
    request = ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="a", datatype="INT64", shape=[4])
    tensor.contents.int64_contents.extend([1, -1, 2**62, 300, -(2**63), 0])
    message = request.SerializeToString()
    assert by_hand(message) == by_upb(message)


def test_contents_that_are_not_packed() -> None:
    head = ModelInferRequest(model_name="m").SerializeToString()
    tensor = ModelInferRequest.InferInputTensor(name="a", datatype="INT32", shape=[3])
    contents = b"\x10\x05" + b"\x12\x02\x06\x07" + b"\x10\xff\xff\xff\xff\x0f"
    content = tensor.SerializeToString() + bytes((0x2A, len(contents))) + contents
    message = head + bytes((0x2A, len(content))) + content
    assert by_hand(message) == by_upb(message)


def test_raw_tensors_are_views() -> None:
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="a", datatype="FP32", shape=[2])
    request.raw_input_contents.append(b"12345678")
    message = bytearray(request.SerializeToString())
    tensor = grpc_codec.decode_large_request(memoryview(message))[0].inputs[0]
    message[-1] = ord("x")
    assert bytes(tensor.data) == b"1234567x"


@pytest.mark.parametrize("fault", ["both kinds", "wrong type", "contents and raw"])
def test_reports_faults_as_for_small_messages(fault: str) -> None:
    request = ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="a", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1)
    if fault == "both kinds":
        tensor.contents.fp64_contents.append(1)
    elif fault == "wrong type":
        tensor.datatype = "INT32"
    else:
        request.raw_input_contents.append(b"1234")
    message = request.SerializeToString()
    assert by_hand(message) == by_upb(message)


@pytest.mark.parametrize(
    ("tag", "name"),
    [(0x22, "parameters"), (0x2A, "inputs"), (0x32, "outputs"), (0x3A, "raw_input_contents")],
)
def test_refuses_many_fields_before_it_builds_anything(tag: int, name: str) -> None:
    head = ModelInferRequest(model_name="m").SerializeToString()
    message = head + bytes((tag, 0)) * (grpc_large.MAX_FIELDS + 1)
    with pytest.raises(NaiadError, match=f"more than {grpc_large.MAX_FIELDS} {name}"):
        grpc_codec.decode_request(message)


def test_refuses_much_that_is_not_tensor_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_large, "MAX_REST_BYTES", 1000)
    request = ModelInferRequest(model_name="m")
    request.parameters["p"].string_param = "x" * 1001
    with pytest.raises(NaiadError, match="more than 1000 bytes outside of tensor data"):
        grpc_codec.decode_large_request(request.SerializeToString())


@pytest.mark.parametrize("message", [b"\x2a\x05\x0a", b"\x2a\x02\x2a\x05", b"\x0b", b"\xff" * 11])
def test_refuses_what_is_not_a_message(message: bytes) -> None:
    with pytest.raises(NaiadError, match="Unable to parse request"):
        grpc_codec.decode_large_request(message)


def test_the_first_repeated_output_is_found_in_one_pass() -> None:
    request = ModelInferRequest(model_name="m")
    for name in ("a", "b", "c", "b", "a"):
        request.outputs.add(name=name)
    with pytest.raises(NaiadError, match="output 'b' already exists in request"):
        grpc_codec.decode_request(request.SerializeToString())


def test_a_large_message_is_identified_by_its_beginning() -> None:
    head = ModelInferRequest(model_name="m", model_version="3", id="7").SerializeToString()
    identity = grpc_codec.identify(head + b"\x32\x00" * 100_000)
    assert identity is not None
    assert (identity.model_name, identity.model_version, identity.id) == ("m", "3", "7")
