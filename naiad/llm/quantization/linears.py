"""Quantized and plain matrices of one module -> the Linear that the device multiplies.

`LinearBuilder` is implemented for each device: CpuLinears here, GpuLinears in
kernels/gpu_linears.py.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from naiad.llm.models.decoder_weights import Linear
from naiad.llm.models.packed_integers import pack_integers
from naiad.llm.models.quantized_linear import PartedLinear
from naiad.llm.quantization.matrix import QuantizedMatrix, can_merge, merge

WIDENED = "16-bit matrices, widened at load"
"""How a builder names matrices that the device has no kernel for."""
Part = tuple[QuantizedMatrix | Tensor, Tensor | None]
"""A matrix and its bias."""


class LinearBuilder(Protocol):
    kernels: dict[str, int]
    """Which kernel multiplies how many matrices, for the log and the model's config."""

    def check(self, module: str, matrix: QuantizedMatrix) -> None:
        """Raises NaiadError, with the nearest thing that works, where the device has no fast kernel
        for the matrix."""

    def build(self, matrix: QuantizedMatrix, bias: Tensor | None) -> Linear: ...


class CpuLinears:
    """`LinearBuilder`. Integers stay packed; fp8 becomes float16, since no kernel multiplies it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kernels: dict[str, int] = {}

    def check(self, module: str, matrix: QuantizedMatrix) -> None:
        return

    def build(self, matrix: QuantizedMatrix, bias: Tensor | None) -> Linear:
        packed = pack_integers(matrix, bias)
        name = WIDENED if packed is None else f"torch's {matrix.kind} kernel for CPUs"
        self.kernels[name] = self.kernels.get(name, 0) + 1
        return packed if packed is not None else Linear(matrix.dequantize(self.dtype), bias)


def join(parts: list[Part], builder: LinearBuilder) -> Linear:
    """One Linear of what lies one under the other: merged where one kernel can multiply it."""
    matrices = [matrix for matrix, _ in parts]
    if all(isinstance(matrix, QuantizedMatrix) for matrix in matrices) and can_merge(matrices):
        return builder.build(merge(matrices), _join_bias(parts))
    if all(isinstance(matrix, Tensor) for matrix in matrices):
        return Linear(torch.cat(matrices), _join_bias(parts))
    pieces = [
        builder.build(m, bias) if isinstance(m, QuantizedMatrix) else Linear(m, bias)
        for m, bias in parts
    ]
    return PartedLinear(torch.empty(0), None, pieces)


def _join_bias(parts: list[Part]) -> Tensor | None:
    biases = [bias for _, bias in parts if bias is not None]
    return torch.cat(biases) if biases else None
