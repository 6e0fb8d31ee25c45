"""Where tensors come from, by name. Implementations: SafetensorsSource, GgufSource,
PickleSource."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TensorSource(Protocol):
    def names(self) -> set[str]: ...

    def get(self, name: str) -> Tensor:
        """In the checkpoint's own dtype, on whatever device the source reads to."""
