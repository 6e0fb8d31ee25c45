"""What is sent: values for a model's inputs, as streams of steps.

A step is one request's worth of tensors for batch size 1. A sequence walks through one stream;
other models take all steps in turn.
"""

from __future__ import annotations

import msgspec

from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.settings.option import OptionError


class TensorValue(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]
    """Without the batch dimension."""
    raw: bytes
    """As on the wire: C order, little-endian, strings with their lengths."""


Step = dict[str, TensorValue]


class Dataset(msgspec.Struct, frozen=True):
    streams: list[list[Step]]
    expected: list[list[Step]] = []
    """Outputs that must come back, one list for each stream; empty when nothing is checked."""
    is_given: bool = False
    """Read from files, so its length says how long a sequence is."""

    @property
    def steps(self) -> list[Step]:
        return [step for stream in self.streams for step in stream]

    @property
    def expected_steps(self) -> list[Step]:
        return [step for stream in self.expected for step in stream]


def fixed_shape(tensor: TensorFacts, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape to send: from --shape where the model leaves it open."""
    given = shapes.get(tensor.name)
    if given is None:
        if -1 in tensor.shape:
            raise OptionError(
                f"input '{tensor.name}' has the dynamic shape {list(tensor.shape)}: say what to send, e.g. --shape {tensor.name}:"
                + ",".join(str(8 if dimension < 0 else dimension) for dimension in tensor.shape)
            )
        return tensor.shape
    if len(given) != len(tensor.shape) or any(
        ours not in (-1, theirs) for ours, theirs in zip(tensor.shape, given, strict=True)
    ):
        raise OptionError(
            f"--shape {tensor.name}:{','.join(map(str, given))} does not fit the model's shape {list(tensor.shape)}"
        )
    return given


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
            f"-b {batch_size} is larger than max_batch_size {facts.max_batch_size} of model '{facts.name}'"
        )
