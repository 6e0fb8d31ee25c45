"""Which requests fit a model, and Triton's messages for those that do not."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.signature import RequestSignature
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError
from naiad.repository.request_check import RequestCheck

NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension "
    "to be prepended to each input shape. "
    "If you want to specify the full shape including the batch dim in your input dims "
    "config, try setting max_batch_size to zero. "
    "See the model configuration docs for more info on max_batch_size."
)


def spec(*inputs: TensorSpec, max_batch_size: int = 8) -> ModelSpec:
    outputs = {"OUT": TensorSpec("OUT", "FP32", [4], [-1, 4])}
    return ModelSpec("m", 1, [1], "python", max_batch_size, {t.name: t for t in inputs}, outputs)


def fp32(name: str, dims: list[int], *, is_optional: bool = False) -> TensorSpec:
    return TensorSpec(name, "FP32", dims, dims, is_optional)


def tensor(
    name: str, shape: list[int], datatype: str = "FP32", num_bytes: int | None = None
) -> Tensor:
    return Tensor(
        name, datatype, shape, bytes(int(np.prod(shape)) * 4 if num_bytes is None else num_bytes)
    )


def refused(
    model: ModelSpec, *inputs: Tensor, outputs: list[str] | None = None, id: str = ""
) -> str:
    with pytest.raises(NaiadError) as failure:
        RequestCheck(model).check(
            InferRequest("m", list(inputs), id=id, requested_outputs=outputs or [])
        )
    assert failure.value.code is Code.INVALID_ARG
    return failure.value.message


AB = spec(fp32("A", [4]), fp32("B", [4]))


def test_a_valid_request_gets_its_batch_size() -> None:
    request = InferRequest(
        "m", [tensor("A", [3, 4]), tensor("B", [3, 4])], requested_outputs=["OUT"]
    )
    RequestCheck(AB).check(request)
    assert request.batch_size == 3


def test_a_model_that_does_not_batch_has_batch_size_one() -> None:
    request = InferRequest("m", [tensor("A", [7, 4])])
    RequestCheck(spec(fp32("A", [-1, 4]), max_batch_size=0)).check(request)
    assert request.batch_size == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [tensor("A", [1, 4])],
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but "
            "missing required input(s) ['B']. "
            "Please provide all required input(s).",
        ),
        (
            [tensor("A", [1, 4]), tensor("B", [2, 4])],
            "input 'B' batch size does not match other inputs for 'm'",
        ),
        (
            [tensor("A", [9, 4]), tensor("B", [9, 4])],
            "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            [tensor("A", [0, 4]), tensor("B", [0, 4])],
            "inference request batch-size must be >= 1 for 'm'",
        ),
        (
            [tensor("A", []), tensor("B", [1, 4])],
            "input 'A' has no shape but model requires batch dimension for 'm'",
        ),
        (
            [tensor("A", [1, 4], "INT32"), tensor("B", [1, 4])],
            "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            [tensor("A", [1, 5]), tensor("B", [1, 4])],
            f"unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [1,5].{NOTE}",
        ),
        (
            [tensor("A", [4]), tensor("B", [4])],
            f"unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [4].{NOTE}",
        ),
        (
            [tensor("A", [1, 4], num_bytes=15), tensor("B", [1, 4])],
            "input byte size mismatch for input 'A' for model 'm'. Expected 16, got 15",
        ),
        ([tensor("A", [1, 4]), tensor("A", [1, 4])], "input 'A' already exists in request"),
    ],
)
def test_messages_with_the_request_id(inputs: list[Tensor], message: str) -> None:
    assert refused(AB, *inputs) == f"[request id: <id_unknown>] {message}"
    assert refused(AB, *inputs, id="7").startswith("[request id: 7] ")


def test_messages_without_the_request_id() -> None:
    assert (
        refused(AB, tensor("A", [1, 4]), tensor("X", [1, 4]))
        == "unexpected inference input 'X' for model 'm'"
    )
    assert (
        refused(AB, tensor("A", [1, 4]), tensor("B", [1, 4]), outputs=["Y"])
        == "unexpected inference output 'Y' for model 'm'"
    )


def test_optional_inputs_may_be_left_out_but_required_ones_may_not() -> None:
    model = spec(fp32("A", [4]), fp32("B", [4], is_optional=True), fp32("C", [4], is_optional=True))
    RequestCheck(model).check(InferRequest("m", [tensor("A", [1, 4])]))
    RequestCheck(model).check(InferRequest("m", [tensor("A", [1, 4]), tensor("C", [1, 4])]))
    assert refused(model) == (
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0 "
        "inputs for model 'm'. "
        "Got input(s) [], but missing required input(s) ['A']. Please provide all required "
        "input(s)."
    )
    assert "missing required input(s) ['A']" in refused(
        model, tensor("B", [1, 4]), tensor("C", [1, 4])
    )


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        (
            [1, 2],
            encode_byte_strings([b"a"]),
            "expected 2 string elements for inference input 'S' for model 'm', got 1",
        ),
        (
            [1, 1],
            encode_byte_strings([b"a", b"b"]),
            "unexpected number of string elements 2 for inference input 'S' for model 'm', "
            "expecting 1",
        ),
        (
            [1, 1],
            b"\1\0",
            "incomplete string length indicator for inference input 'S' for model 'm', "
            "expecting 4 bytes but only 2 bytes",
        ),
        (
            [1, 1],
            b"\5\0\0\0ab",
            "incomplete string data for inference input 'S' for model 'm', expecting string "
            "of length 5 but only 2 bytes",
        ),
    ],
)
def test_strings_are_counted(shape: list[int], data: bytes, message: str) -> None:
    model = spec(TensorSpec("S", "BYTES", [-1], [-1, -1]))
    assert message in refused(model, Tensor("S", "BYTES", shape, data))


def test_a_signature_is_validated_once_for_all_requests_of_the_same_sizes() -> None:
    check, signature = RequestCheck(AB), RequestSignature()
    check.check(InferRequest("m", [tensor("A", [2, 4]), tensor("B", [2, 4])], signature=signature))
    again = InferRequest("m", [tensor("A", [2, 4]), tensor("B", [2, 4])], signature=signature)
    check.check(again)
    assert again.batch_size == 2
    with pytest.raises(NaiadError, match="byte size mismatch"):
        check.check(
            InferRequest(
                "m", [tensor("A", [2, 4]), tensor("B", [2, 4], num_bytes=3)], signature=signature
            )
        )
    with pytest.raises(NaiadError, match="unexpected shape"):
        RequestCheck(spec(fp32("A", [5]), fp32("B", [4]))).check(
            InferRequest("m", [tensor("A", [2, 4]), tensor("B", [2, 4])], signature=signature)
        )
