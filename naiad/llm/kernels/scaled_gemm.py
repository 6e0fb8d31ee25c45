"""8-bit weights times a few rows, split along the inputs as in skinny_gemm; scales are applied
before the parts are stored.

In:  x [rows, inputs], in 16 bits or in fp8 with a scale per row; weights fp8 or int8 [outputs,
     inputs] with a scale per output (`group` 0), or per output and group of inputs ([inputs /
     group, outputs]). Out: float32 parts [splits, rows, outputs].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, prefetch, wait_for_inputs

LINE = 128
"""Values per 128-byte line."""


@triton.jit
def _scaled_gemm_kernel(
    x_ptr, w_ptr, x_scales_ptr, w_scales_ptr, out_ptr, num_rows, num_outputs, K, k_per_split,
    x_stride, part_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr,
    PREFETCH: tl.constexpr, LINE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    inputs = split * k_per_split + tl.arange(0, BLOCK_K)
    w_at = w_ptr + outputs.to(tl.int64)[:, None] * K + inputs[None, :]
    x_at = x_ptr + rows[None, :] * x_stride + inputs[:, None]
    out_mask = outputs < num_outputs
    row_mask = rows < num_rows
    if PREFETCH > 0:
        lines = tl.arange(0, PREFETCH // LINE) * LINE
        near = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
        prefetch(w_ptr + near[:, None] * K + split * k_per_split + lines[None, :], IS_DEPENDENT)
    if GROUP == 0:
        scale = tl.load(w_scales_ptr + outputs, mask=out_mask, other=0.0).to(tl.float32)
    wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(split * k_per_split, split * k_per_split + k_per_split, BLOCK_K):
        w = tl.load(w_at, mask=out_mask[:, None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_at, mask=row_mask[None, :], other=0.0)
        if GROUP == 0:
            acc = tl.dot(w.to(x.dtype), x, acc)
        else:
            part_scale = tl.load(
                w_scales_ptr + (start // GROUP) * num_outputs + outputs, mask=out_mask, other=0.0
            )
            acc += tl.dot(w.to(x.dtype), x) * part_scale.to(tl.float32)[:, None]
        w_at += BLOCK_K
        x_at += BLOCK_K
    if GROUP == 0:
        acc = acc * scale[:, None]
    if HAS_ROW_SCALES:
        acc = acc * tl.load(x_scales_ptr + rows, mask=row_mask, other=0.0)[None, :]
    out_at = (
        out_ptr + split * part_stride + rows.to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    )
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=out_mask[:, None] & row_mask[None, :])


_launch_scaled_gemm = Kernel(_scaled_gemm_kernel)


def scaled_gemm(
    x: Tensor, weight: Tensor, weight_scales: Tensor, row_scales: Tensor | None, group: int,
    num_splits: int,
    block_n: int = 64, block_k: int = 128, num_warps: int = 4, num_stages: int = 4,
    prefetch_k: int = 512,
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`inputs` must be a multiple of num_splits * block_k, and a group of block_k."""
    num_rows, num_inputs = x.shape
    num_outputs = weight.shape[0]
    k_per_split = num_inputs // num_splits
    block_m = min(128, max(16, next_power_of_2(num_rows)))
    out = torch.empty((num_splits, num_rows, num_outputs), dtype=dtype, device=x.device)
    _launch_scaled_gemm(
        (triton.cdiv(num_outputs, block_n), num_splits, triton.cdiv(num_rows, block_m)),
        (x, weight, row_scales if row_scales is not None else weight_scales, weight_scales, out),
        (num_rows, num_outputs, num_inputs, k_per_split, x.stride(0), out.stride(0)),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=group,
        HAS_ROW_SCALES=row_scales is not None,
        PREFETCH=_lines(min(prefetch_k, k_per_split)) * LINE, LINE=LINE, num_warps=num_warps,
        num_stages=num_stages,
    )  # fmt: skip
    return out


def _lines(num_inputs: int) -> int:
    """Whole lines of that many inputs, as a power of two."""
    count = num_inputs // LINE
    return 1 << (count.bit_length() - 1) if count else 0
