"""How the outputs of one ensemble step become the inputs of the next: which tensors, under which
names.

A model that has accepted tensors of one signature accepts them again, so only the signature of
later outputs is compared. Mappings are made by naiad.scheduling.ensemble.relay, which asks the next
model.
"""

from __future__ import annotations

import msgspec

from naiad.core.signature import TensorListSignature, tensor_list_signature
from naiad.core.tensor import Tensor


class TensorMapping(msgspec.Struct, frozen=True):
    signature: TensorListSignature
    """Outputs that the mapping applies to; the next model has accepted tensors of this
    signature."""
    names: list[str]
    """The names of the selected tensors from here on."""
    picks: list[int] | None
    """The position of each selected tensor among the outputs; None selects all of them, in
    order."""
    batch_size: int

    def select(self, outputs: list[Tensor]) -> list[Tensor]:
        return outputs if self.picks is None else [outputs[index] for index in self.picks]

    def apply(self, outputs: list[Tensor]) -> list[Tensor]:
        """The selected tensors, renamed in place."""
        selected = self.select(outputs)
        for tensor, name in zip(selected, self.names, strict=True):
            tensor.name = name
        return selected


def build_mapping(
    outputs: list[Tensor], wanted: list[tuple[str, str]], batch_size: int
) -> TensorMapping | None:
    """`wanted` lists (the name of an output, its name from here on). None when an output is missing
    or two share a name."""
    positions = {tensor.name: index for index, tensor in enumerate(outputs)}
    if len(positions) != len(outputs) or any(name not in positions for name, _ in wanted):
        return None
    picks = [positions[name] for name, _ in wanted]
    return TensorMapping(
        tensor_list_signature(outputs),
        [name for _, name in wanted],
        None if picks == list(range(len(outputs))) else picks,
        batch_size,
    )
