"""Products with fp8 matrices. Activations are fp8 too, quantized by the norm or activation before;
one row alone stays in 16 bits.

one row      gemv, bound by the weights' bytes, norm and residual folded in up to 128    scaled_gemm
in parts more         torch's row-wise scaled product (CUTLASS); with up to 256 rows and few outputs
scaled_gemm still fills the device better
"""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.kernels.activation import silu_mul_fp8
from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.norm import rms_norm_fp8
from naiad.llm.kernels.products import owed, settled
from naiad.llm.kernels.quantize_rows import QuantizedRows, quantize_rows
from naiad.llm.kernels.rows import Rows
from naiad.llm.kernels.scaled_gemm import scaled_gemm
from naiad.llm.models.decoder_weights import Norm
from naiad.llm.models.operations import Stream
from naiad.llm.models.quantized_linear import Fp8Linear

MAX_ROWS = 128
MAX_ROWS_FEW_OUTPUTS = 256
MANY_OUTPUTS = 16384


class Fp8Products:
    """`Products` of products.py."""

    def __init__(self, num_sms: int, dtype: torch.dtype) -> None:
        self.num_sms = num_sms
        self.dtype = dtype

    def norm(self, stream: Stream, norm: Norm, linear: Fp8Linear) -> Rows:
        rows = rms_norm_fp8(
            stream.value, norm.weight, norm.eps, stream.partials, stream.bias, linear.input_scale
        )
        stream.partials = stream.bias = None
        return rows

    def silu_mul(self, x: Tensor, linear: Fp8Linear, dtype: torch.dtype) -> Rows:
        return silu_mul_fp8(x, linear.input_scale)

    def multiply(self, x: Rows, linear: Fp8Linear, may_split: bool) -> Tensor:
        if isinstance(x, Tensor):
            if x.shape[0] == 1:
                return gemv(x, linear.weight, bias=linear.bias, scales=linear.scales)
            x = quantize_rows(x, linear.input_scale)
        assert isinstance(x, QuantizedRows)
        num_outputs, num_inputs = linear.weight.shape
        choice = choose(x.shape[0], num_outputs, num_inputs, self.num_sms)
        if choice is None:
            bias = None if linear.bias is None else linear.bias.bfloat16()
            # Row-wise products of torch are written in bfloat16 only.
            out: Tensor = torch._scaled_mm(
                x.values,
                linear.weight.t(),
                x.scales,
                linear.scales[None],
                bias=bias,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )
            return out.to(self.dtype)
        splits, block_n, block_k, num_warps, num_stages = choice
        parts = scaled_gemm(
            x.values,
            linear.weight,
            linear.scales,
            x.scales,
            0,
            splits,
            block_n,
            block_k,
            num_warps,
            num_stages,
        )
        if may_split:
            return parts
        total = parts.sum(0)
        return (total if linear.bias is None else total + linear.bias).to(self.dtype)

    def multiply_add(self, x: Rows, linear: Fp8Linear, residual: Tensor) -> Stream:
        return owed(self.multiply(x, linear, True), linear.bias, residual)

    def norm_one(
        self, stream: Stream, norm: Norm, linear: Fp8Linear, is_gated: bool
    ) -> Tensor | None:
        bias = None if is_gated else linear.bias
        return gemv(
            settled(stream),
            linear.weight,
            norm.weight,
            norm.eps,
            bias,
            is_gated=is_gated,
            scales=linear.scales,
        )

    def add_one(self, x: Rows, linear: Fp8Linear, residual: Tensor) -> Tensor | None:
        return (
            gemv(x, linear.weight, bias=linear.bias, residual=residual, scales=linear.scales)
            if isinstance(x, Tensor)
            else None
        )


def choose(
    num_rows: int, num_outputs: int, num_inputs: int, num_sms: int
) -> tuple[int, int, int, int, int] | None:
    """Splits, block_n, block_k, warps and stages of scaled_gemm, measured on an H200; None: torch's
    product is faster."""
    is_wide = num_outputs >= MANY_OUTPUTS
    if num_rows > (64 if is_wide else MAX_ROWS):
        tiles = -(-num_outputs // 128) * -(-num_rows // 128)
        can_split = num_inputs % 256 == 0 and 2 * tiles <= num_sms
        return (2, 128, 128, 8, 6) if num_rows <= MAX_ROWS_FEW_OUTPUTS and can_split else None
    tiles = -(-num_outputs // 64)
    wanted, splits = (256 if num_rows <= 16 else 128), 1
    while tiles * splits < wanted and splits < 4 and num_inputs % (2 * splits * 128) == 0:
        splits *= 2
    share = num_inputs // splits
    block_k = next((size for size in (256, 128, 64, 32) if share % size == 0), 0)
    if block_k == 0:
        return None
    if num_rows > 16 and tiles * splits > num_sms:
        return (splits, 64, min(block_k, 128), 4, 6 if is_wide else 4)
    return (splits, 64, block_k, 4, 4)
