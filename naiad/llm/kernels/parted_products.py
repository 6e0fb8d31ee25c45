"""Products with matrices that lie side by side but are of different kinds: one after the other, put
together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from naiad.llm.kernels.products import PlainRows, Products, owed
from naiad.llm.kernels.rows import Rows
from naiad.llm.models.decoder_weights import Linear, Norm
from naiad.llm.models.operations import Stream
from naiad.llm.models.quantized_linear import PartedLinear


class PartedProducts(PlainRows):
    """`Products` of products.py."""

    def __init__(self, products_of: Callable[[Linear], Products]) -> None:
        self._products_of = products_of

    def multiply(self, x: Rows, linear: PartedLinear, may_split: bool) -> Tensor:
        return torch.cat(
            [self._products_of(part).multiply(x, part, False) for part in linear.parts], dim=-1
        )

    def multiply_add(self, x: Rows, linear: PartedLinear, residual: Tensor) -> Stream:
        return owed(self.multiply(x, linear, True), linear.bias, residual)

    def norm_one(self, stream: Stream, norm: Norm, linear: Any, is_gated: bool) -> Tensor | None:
        return None

    def add_one(self, x: Rows, linear: Any, residual: Tensor) -> Tensor | None:
        return None
