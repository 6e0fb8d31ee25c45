"""The form of an answer: names, types, shapes and sizes of its tensors, and what they are called as
the inputs of a next model.

What a model has taken once it takes again, as long as the form is the same; so only the form is
compared. Made by ensembles (naiad.scheduling.ensemble.relay), which ask the next model.
"""

from __future__ import annotations

import msgspec

from naiad.core.tensor import Tensor


class TensorForm(msgspec.Struct, frozen=True):
    """Answers that need no further look: they bear the same names, types, shapes and sizes as one
    that the next model has taken."""

    tensors: list[tuple[str, str, list[int], int]]
    names: list[str]
    """What they are called from here on."""
    picks: list[int] | None
    """Which of the answer's tensors these are; None when they are all of them, in this order."""
    batch_size: int

    def fits(self, outputs: list[Tensor]) -> bool:
        if len(outputs) != len(self.tensors):
            return False
        for tensor, (name, datatype, shape, size) in zip(outputs, self.tensors, strict=True):
            if (
                tensor.name != name
                or tensor.shape != shape
                or len(tensor.data) != size
                or tensor.datatype != datatype
            ):
                return False
        return True

    def take(self, outputs: list[Tensor]) -> list[Tensor]:
        taken = outputs if self.picks is None else [outputs[at] for at in self.picks]
        for tensor, name in zip(taken, self.names, strict=True):
            tensor.name = name
        return taken


def made_form(
    outputs: list[Tensor], wanted: list[tuple[str, str]], batch_size: int
) -> TensorForm | None:
    """`wanted`: (the tensor's name in the answer, its name from here on). None when one is missing
    or there twice."""
    at = {tensor.name: number for number, tensor in enumerate(outputs)}
    if len(at) != len(outputs) or any(name not in at for name, _ in wanted):
        return None
    picks = [at[name] for name, _ in wanted]
    return TensorForm(
        [
            (tensor.name, tensor.datatype, tensor.shape.copy(), len(tensor.data))
            for tensor in outputs
        ],
        [name for _, name in wanted],
        None if picks == list(range(len(outputs))) else picks,
        batch_size,
    )
