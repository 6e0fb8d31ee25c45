"""RMS norm of rows, with the additions that the residual stream still owes done on the way.

In:  the stream and, from a split GEMM, float32 parts of what is to be added.
Out: the normed rows, in 16 bits or in fp8; the stream is brought up to date in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs
from naiad.llm.kernels.quantize_rows import QuantizedRows, empty_rows, store_fp8_row


@triton.jit
def _rms_norm_kernel(
    x_ptr, parts_ptr, bias_ptr, weight_ptr, out_ptr, rows_ptr, scales_ptr, static_ptr, hidden,
    part_stride, eps,
    NUM_PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ROWS: tl.constexpr,
    IS_QUANTIZED: tl.constexpr, IS_STATIC: tl.constexpr,
    BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    wait_for_inputs(IS_DEPENDENT)
    source = row.to(tl.int64)
    if HAS_ROWS:
        source = tl.load(rows_ptr + row).to(tl.int64)
    at = source * hidden + columns
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if NUM_PARTS > 0:
        for part in tl.static_range(NUM_PARTS):
            x += tl.load(parts_ptr + part * part_stride + at, mask=mask, other=0.0)
        if HAS_BIAS:
            x += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        if not HAS_ROWS:
            tl.store(x_ptr + at, x.to(x_ptr.dtype.element_ty), mask=mask)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    variance = tl.sum(x * x, axis=0) / hidden
    y = x * tl.rsqrt(variance + eps) * weight
    if IS_QUANTIZED:
        store_fp8_row(y, out_ptr, scales_ptr, static_ptr, row, hidden, columns, mask, IS_STATIC)
    else:
        tl.store(
            out_ptr + row.to(tl.int64) * hidden + columns, y.to(out_ptr.dtype.element_ty), mask=mask
        )


_launch_rms_norm = Kernel(_rms_norm_kernel)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    partials: Tensor | None = None,
    bias: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """`rows` picks the rows to norm; the stream is then left as it is, since nobody reads it
    after."""
    num_rows = x.shape[0] if rows is None else rows.shape[0]
    out = torch.empty((num_rows, x.shape[1]), dtype=x.dtype, device=x.device)
    if num_rows:
        _launch(x, weight, eps, partials, bias, rows, out, None, None)
    return out


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor,
    eps: float,
    partials: Tensor | None = None,
    bias: Tensor | None = None,
    static_scale: Tensor | None = None,
) -> QuantizedRows:
    out = empty_rows(x.shape[0], x.shape[1], x.device)
    _launch(x, weight, eps, partials, bias, None, out.values, out.scales, static_scale)
    return out


def _launch(
    x: Tensor, weight: Tensor, eps: float, partials: Tensor | None, bias: Tensor | None,
    rows: Tensor | None, out: Tensor,
    scales: Tensor | None, static_scale: Tensor | None,
) -> None:  # fmt: skip
    hidden = x.shape[1]
    _launch_rms_norm(
        (out.shape[0],),
        (
            x, partials if partials is not None else x, bias if bias is not None else x, weight,
            out, rows if rows is not None else x,
            scales if scales is not None else x, static_scale if static_scale is not None else x,
        ),
        (hidden, 0 if partials is None else partials.stride(0), eps),
        NUM_PARTS=0 if partials is None else partials.shape[0], HAS_BIAS=bias is not None,
        HAS_ROWS=rows is not None,
        IS_QUANTIZED=scales is not None, IS_STATIC=static_scale is not None,
        BLOCK=next_power_of_2(hidden), num_warps=8 if hidden > 2048 else 4,
    )  # fmt: skip
