"""Products of 16-bit rows with int4 matrices.

one row      int4_gemv, on a row that is prepared together with the norm or activation before
up to 64     int4_gemm in parts
more         cuBLAS on the matrix in 16 bits, of which a copy is kept where the device has room.
             Without room: int4_gemm up to 256 rows, and beyond that the matrix is widened for
             the one product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kernels.activation import silu_mul
from naiad.llm.kernels.int4_gemm import TILE_K, int4_gemm, widen_int4
from naiad.llm.kernels.int4_gemv import PreparedRow, int4_gemv, prepare_row
from naiad.llm.kernels.products import norm_rows, owed, settled, whole
from naiad.llm.kernels.rows import Rows
from naiad.llm.models.decoder_weights import Norm
from naiad.llm.models.operations import Stream
from naiad.llm.models.quantized_linear import Int4Linear

MAX_ROWS = 64
MAX_ROWS_ADDED = 128
"""Above, cuBLAS adds the residual; below, that costs it more than the norm that follows."""
MAX_ROWS_WITHOUT_COPY = 256


class Int4Products:
    """`Products` of products.py."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def norm(self, stream: Stream, norm: Norm, linear: Int4Linear) -> Rows:
        if stream.value.shape[0] == 1 and uses_gemv(linear):
            return prepare_row(settled(stream), norm.weight, norm.eps)
        return norm_rows(stream, norm)

    def silu_mul(self, x: Tensor, linear: Int4Linear, dtype: torch.dtype) -> Rows:
        is_single = x.dim() == 2 and x.shape[0] == 1 and uses_gemv(linear)
        return prepare_row(x, is_gated=True) if is_single else silu_mul(x, dtype)

    def multiply(self, x: Rows, linear: Int4Linear, may_split: bool) -> Tensor:
        if isinstance(x, PreparedRow) or (x.shape[0] == 1 and uses_gemv(linear)):
            return self._one(x, linear, None)
        assert isinstance(x, Tensor)
        x = as_columns(x, linear)
        num_rows = x.shape[0]
        if num_rows > MAX_ROWS and linear.wide is not None:
            return F.linear(x, linear.wide, linear.bias)
        if num_rows > MAX_ROWS_WITHOUT_COPY:
            wide = widen_int4(
                linear.weight, linear.scales, linear.group, linear.num_inputs, x.dtype
            )
            return F.linear(x, wide, linear.bias)
        splits, block_n, num_warps, num_stages = choose(
            num_rows, linear.num_outputs, linear.weight.shape[1]
        )
        parts = int4_gemm(
            x, linear.weight, linear.scales, linear.group, splits, 0, block_n, num_warps, num_stages
        )
        return parts if may_split else whole(parts, linear.bias, x.dtype)

    def multiply_add(self, x: Rows, linear: Int4Linear, residual: Tensor) -> Stream:
        if linear.wide is not None and isinstance(x, Tensor) and x.shape[0] > MAX_ROWS_ADDED:
            rows = as_columns(x, linear)
            if linear.bias is not None:
                residual += linear.bias
            return Stream(residual.addmm_(rows, linear.wide.t()))
        return owed(self.multiply(x, linear, True), linear.bias, residual)

    def norm_one(
        self, stream: Stream, norm: Norm, linear: Int4Linear, is_gated: bool
    ) -> Tensor | None:
        return None

    def add_one(self, x: Rows, linear: Int4Linear, residual: Tensor) -> Tensor | None:
        return self._one(x, linear, residual) if uses_gemv(linear) else None

    def _one(self, x: Rows, linear: Int4Linear, residual: Tensor | None) -> Tensor:
        row = prepare_row(x) if isinstance(x, Tensor) else x
        assert isinstance(row, PreparedRow)
        blocks = choose_gemv(linear.num_outputs, linear.num_inputs)
        return int4_gemv(
            row,
            linear.weight,
            linear.scales,
            linear.group,
            self.dtype,
            linear.bias,
            residual,
            *blocks,
        )


def uses_gemv(linear: Int4Linear) -> bool:
    is_plain = linear.order is None and linear.input_factor is None
    return is_plain and linear.group % TILE_K == 0 and linear.num_inputs % TILE_K == 0


def as_columns(x: Tensor, linear: Int4Linear) -> Tensor:
    """Rows in the order of the matrix's columns, with the factors that these take for granted."""
    rows = x if linear.order is None else x.index_select(1, linear.order)
    return rows if linear.input_factor is None else rows * linear.input_factor


def choose_gemv(num_outputs: int, num_inputs: int) -> tuple[int, int, int]:
    """Outputs and tiles per step of a program, and its warps; measured on an H200 with the matrices
    of an 8B Llama."""
    if num_outputs >= 6144:
        return (4, 16, 2)
    return (8, 16, 4) if num_inputs > 8192 else (4, 32, 4)


def choose(num_rows: int, num_outputs: int, num_tiles: int) -> tuple[int, int, int, int]:
    """Splits, block_n, warps and stages of int4_gemm, measured on an H200."""
    block_n = 64 if num_rows <= 16 else 128
    programs = -(-num_outputs // block_n)
    wanted = 512 if num_rows <= 16 else 192 if num_rows <= 32 else 128
    splits = 1
    while programs * splits < wanted and splits < 8 and num_tiles % (2 * splits) == 0:
        splits *= 2
    is_full = programs * splits > (600 if num_rows <= 16 else 132)
    if num_rows <= 16:
        return (splits, block_n, 4, 4 if is_full else 6)
    if num_rows <= 32:
        return (splits, block_n, 8, 4)
    return (splits, block_n, 8, 3 if is_full else 4 if num_rows > 64 else 5)
