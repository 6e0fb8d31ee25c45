"""Matrix times one row, for a batch of one: reads the weights once, at the memory's speed, and does
the small things beside it on the way.

The RMS norm in front costs no kernel: its scale is one number, so sums of x*g*w and of x*x are
taken in one pass and divided at the end. Behind it, the residual is added, or gate and up are
combined, before anything is written. fp8 weights have a scale per output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, wait_for_inputs


@triton.jit
def _gemv_kernel(
    x_ptr, w_ptr, scales_ptr, norm_ptr, bias_ptr, residual_ptr, out_ptr, num_outputs, K, eps,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_K: tl.constexpr, HAS_TAIL: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows < num_outputs
    columns = tl.arange(0, BLOCK_K)
    at = rows.to(tl.int64)[:, None] * K + columns[None, :]
    mask = row_mask[:, None]
    w = tl.load(
        w_ptr + at,
        mask=mask & (columns < K)[None, :] if HAS_TAIL else mask,
        other=0.0,
        eviction_policy="evict_first",
    )
    up_ptr = w_ptr + tl.full((), num_outputs, tl.int64) * K
    u = w
    if IS_GATED:
        u = tl.load(
            up_ptr + at,
            mask=mask & (columns < K)[None, :] if HAS_TAIL else mask,
            other=0.0,
            eviction_policy="evict_first",
        )
    wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for step in tl.static_range(NUM_K):
        here = step * BLOCK_K + columns
        x = tl.load(
            x_ptr + here, mask=here < K if HAS_TAIL else None, other=0.0 if HAS_TAIL else None
        ).to(tl.float32)
        if HAS_NORM:
            squares += x * x
            x = x * tl.load(
                norm_ptr + here,
                mask=here < K if HAS_TAIL else None,
                other=0.0 if HAS_TAIL else None,
            ).to(tl.float32)
        acc += w.to(tl.float32) * x[None, :]
        if IS_GATED:
            up_acc += u.to(tl.float32) * x[None, :]
        if step + 1 < NUM_K:
            next_mask = mask & (here + BLOCK_K < K)[None, :] if HAS_TAIL else mask
            w = tl.load(
                w_ptr + at + (step + 1) * BLOCK_K,
                mask=next_mask,
                other=0.0,
                eviction_policy="evict_first",
            )
            if IS_GATED:
                u = tl.load(
                    up_ptr + at + (step + 1) * BLOCK_K,
                    mask=next_mask,
                    other=0.0,
                    eviction_policy="evict_first",
                )
    out = tl.sum(acc, axis=1)
    up = tl.sum(up_acc, axis=1)
    if HAS_SCALES:
        out = out * tl.load(scales_ptr + rows, mask=row_mask, other=0.0)
        if IS_GATED:
            up = up * tl.load(scales_ptr + num_outputs + rows, mask=row_mask, other=0.0)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        out = out * scale
        up = up * scale
    if HAS_BIAS:
        out += tl.load(bias_ptr + rows, mask=row_mask, other=0.0).to(tl.float32)
    if IS_GATED:
        out = out * tl.sigmoid(out) * up
    if HAS_RESIDUAL:
        out += tl.load(residual_ptr + rows, mask=row_mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows, out.to(out_ptr.dtype.element_ty), mask=row_mask)


_launch_gemv = Kernel(_gemv_kernel)


def gemv(
    x: Tensor, weight: Tensor, norm: Tensor | None = None, eps: float = 0.0,
    bias: Tensor | None = None, residual: Tensor | None = None,
    is_gated: bool = False, block_n: int = 0, block_k: int = 0, num_warps: int = 0,
    scales: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x is [1, inputs]; weight [outputs, inputs], or [2 * outputs, inputs] when gated. A gated
    projection has no bias."""
    num_inputs = weight.shape[1]
    num_outputs = weight.shape[0] // 2 if is_gated else weight.shape[0]
    if block_n == 0:
        block_n, block_k, num_warps = choose_blocks(
            num_outputs, num_inputs, norm is not None, is_gated, scales is not None
        )
    out = torch.empty((1, num_outputs), dtype=x.dtype, device=x.device)
    _launch_gemv(
        (triton.cdiv(num_outputs, block_n),),
        (
            x, weight, scales if scales is not None else x, norm if norm is not None else x,
            bias if bias is not None else x,
            residual if residual is not None else x, out,
        ),
        (num_outputs, num_inputs, eps),
        BLOCK_N=block_n, BLOCK_K=block_k, NUM_K=triton.cdiv(num_inputs, block_k),
        HAS_TAIL=num_inputs % block_k != 0,
        HAS_SCALES=scales is not None,
        HAS_NORM=norm is not None, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        IS_GATED=is_gated,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def choose_blocks(
    num_outputs: int, num_inputs: int, has_norm: bool, is_gated: bool, is_fp8: bool = False
) -> tuple[int, int, int]:
    """Outputs and inputs per step of a program, and its warps; measured on an H200 with the
    matrices of an 8B Llama."""
    if is_fp8:
        return (8, 512, 2) if is_gated else (4, 512, 1) if has_norm else (8, 512, 8)
    if is_gated:
        return (4, 256, 4)
    if num_outputs > 32768:
        return (16, 128, 4)
    return (16, 256, 8) if has_norm else (2, 512, 2)
