"""How one kind of matrix is multiplied on a GPU. One implementation per kind of Linear;
triton_operations.py chooses by type.

Rule: a product of two dimensions is complete, bias included; one of three is in parts that its
      reader sums, and the reader adds the bias.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from naiad.llm.kernels.activation import silu_mul
from naiad.llm.kernels.norm import rms_norm
from naiad.llm.kernels.rows import Rows
from naiad.llm.models.decoder_weights import Norm
from naiad.llm.models.operations import Stream


class Products(Protocol):
    def norm(self, stream: Stream, norm: Norm, linear: Any) -> Rows:
        """RMS-normed rows as `linear` reads them; the stream is settled on the way."""

    def silu_mul(self, x: Tensor, linear: Any, dtype: torch.dtype) -> Rows:
        """silu(gate) * up of a merged projection, whole or in parts, as `linear` reads it."""

    def multiply(self, x: Rows, linear: Any, may_split: bool) -> Tensor: ...

    def multiply_add(self, x: Rows, linear: Any, residual: Tensor) -> Stream:
        """The residual may be written to."""

    def norm_one(self, stream: Stream, norm: Norm, linear: Any, is_gated: bool) -> Tensor | None:
        """Norm and product of one row in one kernel (gate and up combined); None where this kind
        has no such kernel."""

    def add_one(self, x: Rows, linear: Any, residual: Tensor) -> Tensor | None:
        """Product of one row, added to the residual in the same kernel; None where this kind has no
        such kernel."""


def settled(stream: Stream) -> Tensor:
    """The stream with all that it owes added; rare outside of a norm, which does it on the way."""
    if stream.partials is not None:
        stream.value = (stream.value.float() + stream.partials.float().sum(0)).to(
            stream.value.dtype
        )
        if stream.bias is not None:
            stream.value = stream.value + stream.bias
        stream.partials = stream.bias = None
    return stream.value


def norm_rows(stream: Stream, norm: Norm) -> Tensor:
    normed = rms_norm(stream.value, norm.weight, norm.eps, stream.partials, stream.bias)
    stream.partials = stream.bias = None
    return normed


def whole(parts: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Parts of a product -> the product."""
    total = parts[0] if parts.shape[0] == 1 else parts.sum(0)
    if bias is not None:
        total = total + bias
    return total.to(dtype)


def owed(product: Tensor, bias: Tensor | None, residual: Tensor) -> Stream:
    """A product that the norm that follows adds. A whole one has its bias."""
    return (
        Stream(residual, product, bias) if product.dim() == 3 else Stream(residual, product[None])
    )


class PlainRows:
    """Norm and activation of kinds whose products read 16-bit rows."""

    def norm(self, stream: Stream, norm: Norm, linear: Any) -> Rows:
        return norm_rows(stream, norm)

    def silu_mul(self, x: Tensor, linear: Any, dtype: torch.dtype) -> Rows:
        return silu_mul(x, dtype)
