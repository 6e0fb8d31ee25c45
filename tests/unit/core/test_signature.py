"""What counts for a signature, and what does not."""

from __future__ import annotations

import pytest

from naiad.core.response import InferResponse
from naiad.core.signature import RequestSignature, response_signature, tensor_list_signature
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import invalid_arg


def test_what_is_known_of_a_step_ends_with_the_step() -> None:
    signature, before, after = RequestSignature(), object(), object()
    known = signature.step(0, before)
    assert signature.step(0, before) is known
    assert signature.step(1, before) is not known
    assert signature.step(0, after) is not known, "the ensemble was loaded again"
    assert signature.steps is not None
    assert len(signature.steps) == 2, "of steps that are gone nothing is kept"


def tensors() -> list[Tensor]:
    return [Tensor("A", "FP32", [1, 2], bytes(8)), Tensor("B", "INT8", [3], bytes(3))]


@pytest.mark.parametrize("data", [b"12345678", bytearray(8), memoryview(bytes(8))])
def test_the_data_is_no_part_of_a_signature(data: Buffer) -> None:
    signature, others = tensor_list_signature(tensors()), tensors()
    others[0].data = data
    assert signature.matches(others)
    assert signature.num_bytes == 11


@pytest.mark.parametrize(
    "other",
    [
        Tensor("X", "FP32", [1, 2], bytes(8)),
        Tensor("A", "INT32", [1, 2], bytes(8)),
        Tensor("A", "FP32", [2, 1], bytes(8)),
        Tensor("A", "FP32", [1, 2], bytes(9)),
    ],
)
def test_each_part_of_a_signature_counts(other: Tensor) -> None:
    signature, second = tensor_list_signature(tensors()), tensors()[1]
    assert not signature.matches([other, second])
    assert not signature.matches([second, tensors()[0]])
    assert not signature.matches(tensors()[:1])
    assert not signature.matches([*tensors(), second])


def test_a_signature_does_not_change_with_the_tensors_it_was_made_of() -> None:
    first = tensors()
    signature = tensor_list_signature(first)
    first[0].shape.append(1)
    assert signature.matches(tensors())


@pytest.mark.parametrize(
    ("response", "is_match"),
    [
        (InferResponse("m", "1", "any id", tensors()), True),
        (InferResponse("n", "1", "", tensors()), False),
        (InferResponse("m", "2", "", tensors()), False),
        (InferResponse("m", "1", "", tensors()[:1]), False),
        (InferResponse("m", "1", "", tensors(), {"a": 1}), False),
        (InferResponse("m", "1", "", tensors(), error=invalid_arg("no")), False),
    ],
)
def test_responses(response: InferResponse, is_match: bool) -> None:
    signature = response_signature(InferResponse("m", "1", "", tensors()))
    assert signature.matches(response) is is_match
