"""The input values of a run, as streams of steps.

A step has the tensors of one request with batch size 1. A sequence uses the steps of one stream.
Other models use the steps of all streams in turn.
"""

from __future__ import annotations

import msgspec

from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.settings.option import OptionError


class TensorValue(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]
    """Shape without the batch dimension."""
    raw: bytes
    """Bytes as sent: C order, little-endian, strings with their lengths."""


Step = dict[str, TensorValue]


class Dataset(msgspec.Struct, frozen=True):
    streams: list[list[Step]]
    expected: list[list[Step]] = []
    """Expected outputs of each stream; empty if responses are not checked."""
    is_from_file: bool = False
    """True if the data was read from files; then a sequence is as long as its stream."""

    @property
    def steps(self) -> list[Step]:
        return [step for stream in self.streams for step in stream]

    @property
    def expected_steps(self) -> list[Step]:
        return [step for stream in self.expected for step in stream]


def fixed_shape(tensor: TensorFacts, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape to send: the model's, or that of --shape if the model's is dynamic."""
    shape = shapes.get(tensor.name)
    if shape is None:
        if -1 in tensor.shape:
            example = ",".join(str(8 if size < 0 else size) for size in tensor.shape)
            raise OptionError(
                f"input '{tensor.name}' has the dynamic shape {list(tensor.shape)}. Set the shape"
                f" to send, e.g. --shape {tensor.name}:{example}"
            )
        return tensor.shape
    if len(shape) != len(tensor.shape) or any(
        declared not in (-1, size) for declared, size in zip(tensor.shape, shape, strict=True)
    ):
        raise OptionError(
            f"--shape {tensor.name}:{','.join(map(str, shape))} does not fit the model's shape"
            f" {list(tensor.shape)}"
        )
    return shape


def check_shape_names(facts: ModelFacts, shapes: dict[str, tuple[int, ...]]) -> None:
    for name in shapes:
        if facts.input(name) is None:
            known = ", ".join(tensor.name for tensor in facts.inputs)
            raise OptionError(
                f"--shape names '{name}', but the inputs of model '{facts.name}' are: {known}"
            )


def check_batch_size(facts: ModelFacts, batch_size: int) -> None:
    if batch_size > 1 and facts.max_batch_size == 0:
        raise OptionError(
            f"can not specify -b {batch_size}: model '{facts.name}' does not support batching"
        )
    if facts.max_batch_size and batch_size > facts.max_batch_size:
        raise OptionError(
            f"-b {batch_size} is larger than max_batch_size {facts.max_batch_size} of model"
            f" '{facts.name}'"
        )
