"""Tensors in clients' shared memory, as both codecs read and write them. The words are those of a
genuine Triton."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest

from naiad.core.model_spec import ModelSpec
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.pb.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.protocol.v2 import grpc_codec, json_codec
from naiad.protocol.v2.output_format import OutputFormats

SPEC = ModelSpec("m", 1, [1], "python", 0, {}, {})
HERE = {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 4}
SLICE = RegionSlice("r", 4, 16)


# HTTP.


def tensor(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [4], "parameters": parameters, **more}


def decode(body: dict[str, Any], binary: bytes | None = None) -> tuple[InferRequest, OutputFormats]:
    text = json.dumps(body).encode()
    return json_codec.decode_request(
        text + (binary or b""), None if binary is None else len(text), "m", "", 1 << 20
    )[:2]


def test_inputs_and_outputs() -> None:
    body = {
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}, tensor("B", HERE)],
        "outputs": [{"name": "X", "parameters": HERE}, {"name": "Y"}],
    }
    request, formats = decode(body)
    assert request.regions == RegionUse([(1, SLICE)], {"X": SLICE})
    assert request.requested_outputs == ["X", "Y"]
    assert formats.by_name is not None
    assert [output.is_shared for output in formats.by_name.values()] == [True, False]


def test_what_is_not_said_is_zero() -> None:
    request, _ = decode({"inputs": [tensor("A", {"shared_memory_region": "r"})]})
    assert request.regions == RegionUse([(0, RegionSlice("r", 0, 0))])


def test_beside_binary_data() -> None:
    binary = bytes(range(8))
    request, _ = decode(
        {"inputs": [tensor("A", HERE), tensor("B", {"binary_data_size": 8}), tensor("C", HERE)]},
        binary,
    )
    assert [at for at, _ in request.regions.inputs] == [0, 2]  # type: ignore[union-attr]
    assert bytes(request.inputs[1].data) == binary


def test_sizes_up_to_64_bits() -> None:
    """Beyond what the typed decoder reads, and still numbers to Triton."""
    request, _ = decode({"inputs": [tensor("A", HERE | {"shared_memory_byte_size": 2**64 - 1})]})
    assert request.regions == RegionUse([(0, RegionSlice("r", 4, 2**64 - 1))])


UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"shared_memory_offset": -1}, f"Unable to parse 'shared_memory_offset': {UNSIGNED}"),
        ({"shared_memory_offset": "1"}, f"Unable to parse 'shared_memory_offset': {UNSIGNED}"),
        (
            {"shared_memory_byte_size": 1.5},
            f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}",
        ),
        (
            {"shared_memory_byte_size": 2**64},
            f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}",
        ),
    ],
)
@pytest.mark.parametrize("is_output", [False, True])
def test_words_of_http(parameters: dict[str, Any], words: str, is_output: bool) -> None:
    if is_output:
        body = {
            "inputs": [tensor("A", HERE)],
            "outputs": [{"name": "X", "parameters": HERE | parameters}],
        }
    else:
        body = {"inputs": [tensor("A", HERE | parameters)]}
    with pytest.raises(NaiadError) as caught:
        decode(body)
    assert caught.value.message == words


def test_a_class_count_of_zero_beside_a_region() -> None:
    with pytest.raises(
        NaiadError, match="Output can't set both 'shared_memory_region' and 'classification'"
    ):
        decode(
            {
                "inputs": [tensor("A", HERE)],
                "outputs": [{"name": "X", "parameters": HERE | {"classification": 0}}],
            }
        )


def test_the_answer_says_what_the_output_is_and_no_more() -> None:
    body = {
        "inputs": [tensor("A", HERE)],
        "outputs": [
            {"name": "X", "parameters": HERE},
            {"name": "Y", "parameters": {"binary_data": True}},
        ],
    }
    _, formats = decode(body)
    response = InferResponse(
        "m", "1", "", [Tensor("X", "FP32", [4], b""), Tensor("Y", "INT8", [2], b"\1\2")]
    )
    encoded = json_codec.encode_response(response, formats, SPEC)
    head = json.loads(bytes(encoded.parts[0]))
    assert head["outputs"] == [
        {"name": "X", "datatype": "FP32", "shape": [4]},
        {"name": "Y", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}},
    ]
    assert encoded.parts[1:] == [b"\1\2"]


# gRPC.


def message(
    inputs: list[dict[str, Any] | None],
    outputs: list[dict[str, Any]] | None = None,
    raw: list[bytes] | None = None,
) -> ModelInferRequest:
    built = ModelInferRequest(model_name="m", id="7", raw_input_contents=raw or [])
    for number, parameters in enumerate(inputs):
        added = built.inputs.add(name=f"I{number}", datatype="FP32", shape=[4])
        set_parameters(added.parameters, parameters or {})
    for number, parameters in enumerate(outputs or []):
        set_parameters(built.outputs.add(name=f"O{number}").parameters, parameters)
    return built


def set_parameters(target: Any, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        field = (
            "string_param"
            if isinstance(value, str)
            else "int64_param"
            if value < 2**63
            else "uint64_param"
        )
        setattr(target[name], field, value)


def test_grpc_inputs_and_outputs() -> None:
    request, _ = grpc_codec.decode_request(
        message([HERE, None], [HERE], [b"0123456789abcdef"]).SerializeToString()
    )
    assert request.regions == RegionUse([(0, SLICE)], {"O0": SLICE})
    assert bytes(request.inputs[1].data) == b"0123456789abcdef"


def test_grpc_requests_that_repeat_share_their_signature() -> None:
    first = message([HERE, HERE], [HERE])
    second = message([HERE, HERE], [HERE])
    second.id = "8"
    read = lru_cache(grpc_codec.read_template)
    one, _ = grpc_codec.decode_request(first.SerializeToString(), read)
    two, _ = grpc_codec.decode_request(second.SerializeToString(), read)
    assert (one.id, two.id) == ("7", "8")
    assert one.regions == two.regions == RegionUse([(0, SLICE), (1, SLICE)], {"O0": SLICE})
    assert one.signature is two.signature


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"shared_memory_region": 3},
            "invalid value type for 'shared_memory_region' parameter for tensor '{}', expected "
            "string_param.",
        ),
        (
            {"shared_memory_offset": "1"},
            "invalid value type for 'shared_memory_offset' parameter for tensor '{}', expected "
            "int64_param.",
        ),
        (
            {"shared_memory_byte_size": "1"},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor '{}', "
            "expected int64_param.",
        ),
        (
            {"shared_memory_byte_size": 2**63},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor '{}', "
            "expected int64_param.",
        ),
    ],
)
@pytest.mark.parametrize("is_output", [False, True])
def test_words_of_grpc(parameters: dict[str, Any], words: str, is_output: bool) -> None:
    built = message([HERE], [HERE | parameters]) if is_output else message([HERE | parameters])
    with pytest.raises(NaiadError) as caught:
        grpc_codec.decode_request(built.SerializeToString())
    assert caught.value.message == words.format("O0" if is_output else "I0")


def test_grpc_needs_a_size() -> None:
    with pytest.raises(NaiadError) as caught:
        grpc_codec.decode_request(message([{"shared_memory_region": "r"}]).SerializeToString())
    assert (
        caught.value.message
        == "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
        "parameter for tensor 'I0'"
    )


def test_grpc_contents_beside_a_region() -> None:
    built = message([HERE])
    built.inputs[0].contents.fp32_contents.extend([1, 2])
    with pytest.raises(NaiadError) as caught:
        grpc_codec.decode_request(built.SerializeToString())
    assert (
        caught.value.message
        == "unexpected 'content' provided when using shared memory for input tensor 'I0' for "
        "model 'm'"
    )


def test_grpc_negative_numbers_are_very_large_ones() -> None:
    request, _ = grpc_codec.decode_request(
        message([HERE | {"shared_memory_offset": -16}]).SerializeToString()
    )
    assert request.regions == RegionUse([(0, RegionSlice("r", 2**64 - 16, 16))])


def test_grpc_answer_has_an_empty_place_for_it() -> None:
    request, options = grpc_codec.decode_request(message([HERE], [HERE, {}]).SerializeToString())
    response = InferResponse(
        "m", "1", "7", [Tensor("O0", "FP32", [4], b""), Tensor("O1", "INT8", [2], b"\1\2")]
    )
    pieces, num_bytes = grpc_codec.encode_response(response, request, options, SPEC)
    data = b"".join(pieces)
    assert len(data) == num_bytes
    answer = ModelInferResponse.FromString(data)
    assert [output.name for output in answer.outputs] == ["O0", "O1"]
    assert list(answer.raw_output_contents) == [b"", b"\1\2"]
