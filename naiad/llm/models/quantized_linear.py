"""Quantized matrices as kernels read them. `weight` is what the kernel's own layout says; all have
a bias as Linear has one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from naiad.llm.models.decoder_weights import MATRICES, DecoderWeights, Linear


@dataclass(slots=True)
class Fp8Linear(Linear):
    """float8_e4m3fn [outputs, inputs]; activations are quantized as well where there are several
    rows."""

    scales: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 [outputs]."""
    input_scale: Tensor | None = None
    """float32, one number on the device; None: each row has its own."""


@dataclass(slots=True)
class ByteLinear(Linear):
    """int8 or float8_e4m3fn [outputs, inputs] with 16-bit activations."""

    scales: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 [groups, outputs]."""
    group: int = 0
    """Inputs per scale; 0: one scale per output."""
    order: Tensor | None = None
    """int64: the inputs in the order of the weight's columns."""


@dataclass(slots=True)
class Int4Linear(Linear):
    """`weight` has the tiles of kernels/int4_gemm.py, with 16-bit activations."""

    scales: Tensor = field(default_factory=lambda: torch.empty(0))
    """int32 [groups, outputs]: scale and zero point in one."""
    group: int = 128
    num_inputs: int = 0
    order: Tensor | None = None
    input_factor: Tensor | None = None
    """Inputs, in that order, are multiplied by it first."""
    wide: Tensor | None = None
    """A copy of the matrix in 16 bits for steps with many rows, if the device has room for it."""

    @property
    def num_outputs(self) -> int:
        return self.scales.shape[1]


@dataclass(slots=True)
class PartedLinear(Linear):
    """Matrices side by side that one kernel cannot compute, such as those of which a checkpoint
    quantized only some. `weight` is empty."""

    parts: list[Linear] = field(default_factory=list)


def widening_bytes(weights: DecoderWeights) -> int:
    """Returns the memory of the largest int4 matrix in 16 bits: steps with many rows widen one at a
    time where no copy is kept."""
    return max(
        (
            2 * linear.num_outputs * linear.num_inputs
            for layer in weights.layers
            for name in MATRICES
            if isinstance(linear := getattr(layer, name), Int4Linear) and linear.wide is None
        ),
        default=0,
    )
