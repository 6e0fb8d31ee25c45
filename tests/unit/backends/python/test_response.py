"""pb_utils.InferenceResponse and TritonError."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from naiad.backends.python.error import TritonError, TritonModelException
from naiad.backends.python.response import InferenceResponse, decode_response, encode_response
from naiad.backends.python.tensor import Tensor
from naiad.errors import Code
from naiad.ipc.work import WorkError, WorkResponse, WorkTensor


def test_sends_only_requested_outputs() -> None:
    response = InferenceResponse(
        [Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1)), Tensor("UNKNOWN", np.zeros(1))]
    )
    assert [tensor.name for tensor in encode_response(response, ["B"]).outputs] == ["B"]
    assert [tensor.name for tensor in encode_response(response, {"A", "B"}).outputs] == ["A", "B"]
    assert [tensor.name() for tensor in response.output_tensors()] == ["A", "B", "UNKNOWN"]


def test_an_error_hides_the_outputs() -> None:
    response = InferenceResponse(
        [Tensor("A", np.zeros(1))], TritonError("bad", TritonError.NOT_FOUND)
    )
    assert response.has_error()
    assert encode_response(response, ["A"]) == WorkResponse([], WorkError("NOT_FOUND", "bad"))


def test_encodes_and_decodes_parameters() -> None:
    response = InferenceResponse([], parameters={"a": 1, "b": "x", "c": True})
    assert json.loads(response.parameters()) == {"a": 1, "b": "x", "c": True}
    assert encode_response(response, []).parameters == {"a": 1, "b": "x", "c": True}
    assert InferenceResponse().parameters() == "{}"


def test_decode() -> None:
    response = decode_response(
        WorkResponse([WorkTensor("A", "INT64", [1], bytearray(8))], None, {"k": 2.5})
    )
    assert response.output_tensors()[0].as_numpy().tolist() == [0]
    assert (response.has_error(), response.error(), response.parameters()) == (
        False,
        None,
        '{"k": 2.5}',
    )
    failed = decode_response(WorkResponse(error=WorkError("UNAVAILABLE", "later"))).error()
    assert failed is not None
    assert (failed.message(), failed.code()) == ("later", TritonError.UNAVAILABLE)


def test_rejects_wrong_types() -> None:
    with pytest.raises(
        TritonModelException, match=r"^Output tensor for inference response should not be empty\.$"
    ):
        InferenceResponse([None])  # type: ignore[list-item]
    wrong: list[tuple[Any, ...]] = [([1],), (Tensor("A", np.zeros(1)),), ([], "error")]
    for arguments in wrong:
        with pytest.raises(TypeError, match="incompatible constructor arguments"):
            InferenceResponse(*arguments)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({1: "a"}, "Expect parameters keys to have type str, found type <class 'int'>"),
        (
            {"a": 2.5},
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            {"a": None},
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
        ({"a": 2**70}, f"Expect parameters values to fit 64 bits, found {2**70}"),
        ([], "Expect parameters to be a dict, got <class 'list'>"),
    ],
)
def test_rejects_invalid_parameters(parameters: Any, message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        InferenceResponse([], parameters=parameters)
    assert str(caught.value) == message


def test_error_codes() -> None:
    codes = list(Code)[:8]  # the others are gRPC's, which Triton does not have
    assert [code.name for code in codes] == [getattr(TritonError, code.name).name for code in codes]
    assert [int(getattr(TritonError, code.name)) for code in codes] == list(range(8))
    assert TritonError("x").code() == TritonError.INTERNAL
    assert not isinstance(TritonError("x"), Exception)
    for arguments in ((5,), ("a", 5)):
        with pytest.raises(TypeError, match=r"__init__\(\): incompatible"):
            TritonError(*arguments)


def test_an_error_may_be_utf8_bytes() -> None:
    assert TritonError("grün".encode()).message() == "grün"
    assert TritonError(b"gone", TritonError.NOT_FOUND).code() == TritonError.NOT_FOUND


def test_error_text_can_always_be_sent() -> None:
    assert TritonError("undecodable \udc80").message() == "undecodable ?"
