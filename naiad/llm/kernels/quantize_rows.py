"""Rows in fp8 with a scale each: what an fp8 product reads. Norm and silu-mul write such rows
themselves; this is for all others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs

FP8_MAX = tl.constexpr(448.0)
TINY = tl.constexpr(1e-12)


@dataclass(slots=True)
class QuantizedRows:
    values: Tensor
    """float8_e4m3fn [rows, width]."""
    scales: Tensor
    """float32 [rows, 1]."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


@triton.jit
def store_fp8_row(
    y, out_ptr, scales_ptr, static_ptr, row, width, columns, mask, IS_STATIC: tl.constexpr
):
    """`y` is a whole row in float32. Numbers beyond the range of a static scale are clamped, as its
    calibration meant."""
    if IS_STATIC:
        scale = tl.load(static_ptr)
    else:
        scale = tl.maximum(tl.max(tl.abs(y), axis=0), TINY) / FP8_MAX
    scaled = tl.minimum(tl.maximum(y / scale, -FP8_MAX), FP8_MAX)
    tl.store(out_ptr + row.to(tl.int64) * width + columns, scaled.to(tl.float8e4nv), mask=mask)
    tl.store(scales_ptr + row, scale)


@triton.jit
def _quantize_rows_kernel(
    x_ptr,
    out_ptr,
    scales_ptr,
    static_ptr,
    width,
    x_stride,
    IS_STATIC: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    wait_for_inputs(IS_DEPENDENT)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    store_fp8_row(x, out_ptr, scales_ptr, static_ptr, row, width, columns, mask, IS_STATIC)


_launch_quantize_rows = Kernel(_quantize_rows_kernel)


def empty_rows(num_rows: int, width: int, device: torch.device) -> QuantizedRows:
    values = torch.empty((num_rows, width), dtype=torch.float8_e4m3fn, device=device)
    return QuantizedRows(values, torch.empty((num_rows, 1), dtype=torch.float32, device=device))


def quantize_rows(x: Tensor, static_scale: Tensor | None = None) -> QuantizedRows:
    """`static_scale` is one float32 number on the device; without it every row has its own."""
    num_rows, width = x.shape
    out = empty_rows(num_rows, width, x.device)
    _launch_quantize_rows(
        (num_rows,),
        (x, out.values, out.scales, out.scales if static_scale is None else static_scale),
        (width, x.stride(0)),
        IS_STATIC=static_scale is not None, BLOCK=next_power_of_2(width),
        num_warps=8 if width > 2048 else 4,
    )  # fmt: skip
    return out
