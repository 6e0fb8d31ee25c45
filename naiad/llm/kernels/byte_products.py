"""Products of 16-bit rows with int8 matrices, or fp8 ones that have scales per block of inputs.

up to 64 rows    scaled_gemm in parts, the weights widened in registers more             the matrix
is widened to 16 bits for the moment, and cuBLAS multiplies: 2% slower than a 16-bit checkpoint
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kernels.products import PlainRows, owed, whole
from naiad.llm.kernels.rows import Rows
from naiad.llm.kernels.scaled_gemm import scaled_gemm
from naiad.llm.kernels.widen_bytes import widen_bytes
from naiad.llm.models.decoder_weights import Norm
from naiad.llm.models.operations import Stream
from naiad.llm.models.quantized_linear import ByteLinear

MAX_ROWS = 64
SIZES = (128, 64, 32, 16)


class ByteProducts(PlainRows):
    """`Products` of products.py."""

    def multiply(self, x: Rows, linear: ByteLinear, may_split: bool) -> Tensor:
        assert isinstance(x, Tensor)
        if linear.order is not None:
            x = x.index_select(1, linear.order)
        if x.shape[0] > MAX_ROWS:
            return F.linear(
                x, widen_bytes(linear.weight, linear.scales, linear.group, x.dtype), linear.bias
            )
        splits, block_k = choose(linear.weight.shape[0], linear.weight.shape[1], linear.group)
        parts = scaled_gemm(
            x, linear.weight, linear.scales, None, linear.group, splits, 64, block_k, 4, 4
        )
        return parts if may_split else whole(parts, linear.bias, x.dtype)

    def multiply_add(self, x: Rows, linear: ByteLinear, residual: Tensor) -> Stream:
        return owed(self.multiply(x, linear, True), linear.bias, residual)

    def norm_one(
        self, stream: Stream, norm: Norm, linear: ByteLinear, is_gated: bool
    ) -> Tensor | None:
        return None

    def add_one(self, x: Rows, linear: ByteLinear, residual: Tensor) -> Tensor | None:
        return None


def choose(num_outputs: int, num_inputs: int, group: int) -> tuple[int, int]:
    """Splits and block_k: a block of inputs lies in one group."""
    block_k = next(
        size for size in SIZES if num_inputs % size == 0 and (group == 0 or group % size == 0)
    )
    splits = 1
    while (
        -(-num_outputs // 64) * splits < 256
        and splits < 8
        and num_inputs % (2 * splits * block_k) == 0
    ):
        splits *= 2
    return splits, block_k
