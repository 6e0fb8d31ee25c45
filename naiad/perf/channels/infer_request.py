"""The tensors and parameters of one request, independent of the protocol.

In:  a Dataset and a batch size. Out: ClientRequest, which http_infer and grpc_infer encode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from naiad.perf.data.dataset import Dataset, Step
from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.settings.option import OptionError


class MemorySpan(msgspec.Struct, frozen=True):
    """A tensor in a registered shared-memory region."""

    region: str
    byte_size: int
    offset: int = 0


class InputTensor(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    span: MemorySpan | None = None


class OutputTensor(msgspec.Struct, frozen=True):
    name: str
    span: MemorySpan | None = None


class ClientRequest(msgspec.Struct, frozen=True):
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputTensor, ...]
    parameters: dict[str, Any] = {}


def batched_requests(
    dataset: Dataset, facts: ModelFacts, batch_size: int, parameters: dict[str, Any]
) -> list[ClientRequest]:
    """Builds requests from steps: with batch size b, request n has steps n*b to n*b+b-1, modulo the
    number of steps."""
    steps = dataset.steps
    count = max(1, len(steps) // batch_size)
    return [
        request_of(
            [steps[(n * batch_size + k) % len(steps)] for k in range(batch_size)], facts, parameters
        )
        for n in range(count)
    ]


def request_of(
    steps: Sequence[Step], facts: ModelFacts, parameters: dict[str, Any]
) -> ClientRequest:
    inputs = tuple(
        _batched(tensor, steps, facts) for tensor in facts.inputs if tensor.name in steps[0]
    )
    return ClientRequest(
        inputs, tuple(OutputTensor(output.name) for output in facts.outputs), parameters
    )


def _batched(tensor: TensorFacts, steps: Sequence[Step], facts: ModelFacts) -> InputTensor:
    first = steps[0][tensor.name]
    if facts.max_batch_size == 0 or tensor.is_shape_tensor:
        return InputTensor(tensor.name, tensor.datatype, first.shape, first.raw)
    values = [step.get(tensor.name, first) for step in steps]
    for value in values:
        if value.shape != first.shape:
            raise OptionError(
                f"input '{tensor.name}': a batch cannot mix shapes {list(first.shape)} and"
                f" {list(value.shape)}"
            )
    return InputTensor(
        tensor.name,
        tensor.datatype,
        (len(steps), *first.shape),
        b"".join(value.raw for value in values),
    )
