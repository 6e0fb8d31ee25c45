"""Signatures: what two requests, or two responses, must have in common to be handled alike.

A signature covers names, datatypes, shapes and sizes, never the data. Fast paths, validation and
ensembles compare signatures instead of repeating work whose result depends on nothing else.
Rule: `TensorListSignature.matches` is the only place where tensors are compared with a signature.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from naiad.core.tensor import Tensor

if TYPE_CHECKING:
    from naiad.core.response import InferResponse


class TensorSignature(NamedTuple):
    """A tuple, so that a whole list of them is compared with tensors in one step."""

    name: str
    datatype: str
    shape: list[int]
    num_bytes: int


class TensorListSignature(msgspec.Struct, frozen=True):
    tensors: list[TensorSignature]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)

    def matches(self, tensors: Iterable[Tensor]) -> bool:
        return [
            (tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in tensors
        ] == self.tensors


def tensor_list_signature(tensors: Iterable[Tensor]) -> TensorListSignature:
    return TensorListSignature(
        [
            TensorSignature(tensor.name, tensor.datatype, list(tensor.shape), len(tensor.data))
            for tensor in tensors
        ]
    )


class ResponseSignature(msgspec.Struct, frozen=True):
    """The signature of a successful response without parameters; the id is not part of it."""

    model_name: str
    model_version: str
    outputs: TensorListSignature

    def matches(self, response: InferResponse) -> bool:
        return (
            self.outputs.matches(response.outputs)
            and response.error is None
            and not response.parameters
            and response.model_version == self.model_version
            and response.model_name == self.model_name
        )


def response_signature(response: InferResponse) -> ResponseSignature:
    return ResponseSignature(
        response.model_name, response.model_version, tensor_list_signature(response.outputs)
    )


class RequestSignature(msgspec.Struct):
    """Shared by requests that differ only in id and tensor data; records how such a request was
    validated, so that the next one need not be."""

    accepted_by: object = None
    """The check that accepts such requests whatever their data is; None while there is none, and
    for a model whose check reads the data."""
    sizes: list[int] = []
    """The size of each input in bytes."""
    batch_size: int = 1
    steps: dict[int, tuple[object, RequestSignature]] | None = None
    """The ensemble step and the signature of the requests that it makes, keyed by step number."""

    def step(self, number: int, step: object) -> RequestSignature:
        """A signature outlives the ensemble: another copy of the ensemble starts afresh."""
        if self.steps is None:
            self.steps = {}
        entry = self.steps.get(number)
        if entry is None or entry[0] is not step:
            entry = self.steps[number] = (step, RequestSignature())
        return entry[1]
