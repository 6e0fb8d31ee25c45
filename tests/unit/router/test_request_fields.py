from __future__ import annotations

import json

import pytest

from naiad.errors import NaiadError
from naiad.pb import grpc_service_pb2 as pb
from naiad.router.request_fields import (
    grpc_model,
    grpc_request_id,
    grpc_sequence,
    json_sequence,
    openai_model,
)
from naiad.router.sequences import SequenceStep


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("name", ["m", "a" * 127, "a" * 128, "a" * 1000, "modèle", ""])
def test_reads_the_model_of_a_message(name: str, is_exact: bool) -> None:
    for version in ("", "3"):
        request = pb.ModelInferRequest(
            model_name=name, model_version=version, raw_input_contents=[b"x" * 100_000]
        )
        message = request.SerializeToString()
        assert grpc_model(message, is_exact=is_exact) == (name, version)
        assert grpc_model(memoryview(message), is_exact=is_exact) == (name, version)


def test_an_exact_reading_finds_the_name_that_the_replica_will_find() -> None:
    first = pb.ModelInferRequest(model_name="allowed", id="7").SerializeToString()
    both = first + pb.ModelInferRequest(model_name="secret").SerializeToString()
    assert pb.ModelInferRequest.FromString(both).model_name == "secret"
    assert grpc_model(both, is_exact=True) == ("secret", "")


@pytest.mark.parametrize(
    "message", [b"\x0a\xff", b"\x0a\x05ab", b"\x0f", b"\x08", b"\x08" + b"\xff" * 20]
)
def test_a_message_that_is_not_protobuf_is_an_error(message: bytes) -> None:
    with pytest.raises(NaiadError, match="not protobuf"):
        grpc_model(message)


def test_a_message_of_very_many_fields_is_refused() -> None:
    with pytest.raises(NaiadError, match="more than 16384 fields"):
        grpc_model(b"\x2a\x00" * 20_000)


def test_reads_the_id_of_a_request() -> None:
    request = pb.ModelInferRequest(model_name="m", id="r-7", raw_input_contents=[b"x" * 1000])
    assert grpc_request_id(request.SerializeToString()) == "r-7"
    assert grpc_request_id(pb.ModelInferRequest(model_name="m").SerializeToString()) == ""
    assert grpc_request_id(b"\x0a\xff") == ""


def sequence_request(**parameters: object) -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"x" * 50_000])
    for name, value in parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].string_param = str(value)
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("parameters", "step"),
    [
        ({"sequence_id": 42}, SequenceStep("42", raw_id=42)),
        (
            {"sequence_id": "abc", "sequence_start": True},
            SequenceStep("abc", is_start=True, raw_id="abc"),
        ),
        ({"sequence_id": 7, "sequence_end": True}, SequenceStep("7", is_end=True, raw_id=7)),
        ({"sequence_id": 0}, None),
        ({"sequence_id": ""}, None),
        ({"priority": 1}, None),
    ],
)
def test_reads_the_sequence_of_a_request(
    parameters: dict[str, object], step: SequenceStep | None
) -> None:
    assert grpc_sequence(sequence_request(**parameters)) == step
    body = json.dumps({"inputs": [], "parameters": parameters}).encode()
    assert json_sequence(body, 0) == step
    assert json_sequence(memoryview(body + b"\xff\xfe"), len(body)) == step


def test_the_text_sequence_id_in_tensor_data_is_not_a_sequence() -> None:
    body = json.dumps({"inputs": [{"name": "x", "data": ["sequence_id"]}]}).encode()
    assert json_sequence(body, 0) is None
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"sequence_id"])
    assert grpc_sequence(request.SerializeToString()) is None


def test_what_is_not_json_is_left_to_the_replica() -> None:
    assert json_sequence(b'{"sequence_id": ', 0) is None


def test_reads_the_model_of_an_openai_body() -> None:
    assert openai_model(b'{"messages": [{"role": "user"}], "model": "llama"}') == "llama"
    assert openai_model(b'{"prompt": "x"}') == ""
    assert openai_model(b'{"model": "a", "prompt": "\\"model\\": \\"b\\"", "model": "c"}') == "c"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": 7}', b'{"model": "a"', b"\xff"])
def test_a_body_without_a_readable_model_is_an_error(body: bytes) -> None:
    with pytest.raises(NaiadError, match="not JSON with a text 'model'"):
        openai_model(body)
