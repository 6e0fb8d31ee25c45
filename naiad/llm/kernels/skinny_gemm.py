"""Multiplies weights with a few rows, split along the inputs so that every SM streams the same
share of the weights.

In:  x [rows, inputs], up to 64 rows. Out: float32 parts [splits, rows, outputs]; the next kernel
     sums them when it reads them, so no separate kernel is needed. The weights are the left
     operand: they fill the tall side of the tensor cores, the few rows the narrow one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, prefetch, wait_for_inputs

LINE = 64
"""Values per 128-byte line."""


@triton.jit
def _skinny_gemm_kernel(
    x_ptr, w_ptr, out_ptr, num_rows, num_outputs, K, k_per_split, x_stride, part_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PREFETCH: tl.constexpr,
    LINE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_M)
    inputs = split * k_per_split + tl.arange(0, BLOCK_K)
    w_at = w_ptr + outputs.to(tl.int64)[:, None] * K + inputs[None, :]
    x_at = x_ptr + rows[None, :] * x_stride + inputs[:, None]
    out_mask = outputs < num_outputs
    row_mask = rows < num_rows
    if PREFETCH > 0:
        lines = tl.arange(0, PREFETCH // LINE) * LINE
        near = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
        prefetch(w_ptr + near[:, None] * K + split * k_per_split + lines[None, :], IS_DEPENDENT)
    wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for _ in range(0, k_per_split, BLOCK_K):
        w = tl.load(w_at, mask=out_mask[:, None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_at, mask=row_mask[None, :], other=0.0)
        acc = tl.dot(w, x, acc)
        w_at += BLOCK_K
        x_at += BLOCK_K
    out_at = out_ptr + split * part_stride + rows[None, :] * num_outputs + outputs[:, None]
    tl.store(out_at, acc, mask=out_mask[:, None] & row_mask[None, :])


_launch_skinny_gemm = Kernel(_skinny_gemm_kernel)


def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    num_splits: int,
    block_n: int = 64,
    block_k: int = 128,
    num_warps: int = 4,
    num_stages: int = 4,
    prefetch_k: int = 256,
) -> Tensor:
    """`inputs` must be a multiple of num_splits * block_k; gemm_plan.py ensures it."""
    num_rows, num_inputs = x.shape
    num_outputs = weight.shape[0]
    k_per_split = num_inputs // num_splits
    out = torch.empty((num_splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    _launch_skinny_gemm(
        (triton.cdiv(num_outputs, block_n), num_splits), (x, weight, out),
        (num_rows, num_outputs, num_inputs, k_per_split, x.stride(0), out.stride(0)),
        BLOCK_M=max(16, next_power_of_2(num_rows)), BLOCK_N=block_n, BLOCK_K=block_k,
        PREFETCH=min(prefetch_k, k_per_split), LINE=LINE, num_warps=num_warps,
        num_stages=num_stages,
    )  # fmt: skip
    return out
