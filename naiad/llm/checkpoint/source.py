"""The interface for tensors by name. SafetensorsSource, GgufSource and PickleSource implement
it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TensorSource(Protocol):
    def names(self) -> set[str]: ...

    def get(self, name: str) -> Tensor:
        """Returns the tensor in the checkpoint's dtype, on the device that the source reads to."""
