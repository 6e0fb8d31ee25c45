"""silu(gate) * up over the merged projection, whole or in float32 parts; in 16 bits, or in fp8 a
whole row at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs
from naiad.llm.kernels.quantize_rows import QuantizedRows, empty_rows, store_fp8_row

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(
    x_ptr,
    out_ptr,
    inner,
    part_stride,
    NUM_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < inner
    wait_for_inputs(IS_DEPENDENT)
    at = row * 2 * inner + columns
    gate = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + at + inner, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        gate += tl.load(x_ptr + part * part_stride + at, mask=mask, other=0.0)
        up += tl.load(x_ptr + part * part_stride + at + inner, mask=mask, other=0.0)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * inner + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _silu_mul_fp8_kernel(
    x_ptr, out_ptr, scales_ptr, static_ptr, inner, part_stride,
    NUM_PARTS: tl.constexpr, IS_STATIC: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < inner
    wait_for_inputs(IS_DEPENDENT)
    at = row.to(tl.int64) * 2 * inner + columns
    gate = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + at + inner, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        gate += tl.load(x_ptr + part * part_stride + at, mask=mask, other=0.0)
        up += tl.load(x_ptr + part * part_stride + at + inner, mask=mask, other=0.0)
    store_fp8_row(
        gate * tl.sigmoid(gate) * up,
        out_ptr,
        scales_ptr,
        static_ptr,
        row,
        inner,
        columns,
        mask,
        IS_STATIC,
    )


_launch_silu_mul = Kernel(_silu_mul_kernel)
_launch_silu_mul_fp8 = Kernel(_silu_mul_fp8_kernel)


def silu_mul(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` is [tokens, 2 * inner], or [parts, tokens, 2 * inner] in float32."""
    num_parts, part_stride = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    num_tokens, inner = x.shape[-2], x.shape[-1] // 2
    out = torch.empty((num_tokens, inner), dtype=dtype, device=x.device)
    _launch_silu_mul(
        (num_tokens, triton.cdiv(inner, BLOCK)),
        (x, out),
        (inner, part_stride),
        NUM_PARTS=num_parts,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return out


def silu_mul_fp8(x: Tensor, static_scale: Tensor | None = None) -> QuantizedRows:
    num_parts, part_stride = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    num_tokens, inner = x.shape[-2], x.shape[-1] // 2
    out = empty_rows(num_tokens, inner, x.device)
    _launch_silu_mul_fp8(
        (num_tokens,),
        (x, out.values, out.scales, out.scales if static_scale is None else static_scale),
        (inner, part_stride),
        NUM_PARTS=num_parts, IS_STATIC=static_scale is not None, BLOCK=next_power_of_2(inner),
        num_warps=16 if inner > 8192 else 8,
    )  # fmt: skip
    return out
