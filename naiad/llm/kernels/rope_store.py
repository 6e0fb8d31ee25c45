"""Norms queries and keys (if the family does so), rotates them, and stores keys and values in their
cache blocks, in one kernel.

In:  the qkv projection, whole or as float32 parts of a split GEMM. Out: rotated queries; keys and
     values in the cache. One program handles HEADS heads of one token. Rotation pairs value d with
     d + half; values beyond 2 * half stay unchanged.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs
from naiad.llm.step.kv_cache import UNSCALED, KvScales

HEADS_PER_PROGRAM = 8


@triton.jit
def _load_heads(
    qkv_ptr,
    bias_ptr,
    at,
    heads_at,
    mask,
    part_stride,
    NUM_PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    x = tl.load(qkv_ptr + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        x += tl.load(qkv_ptr + part * part_stride + at, mask=mask, other=0.0)
    if HAS_BIAS:
        x += tl.load(bias_ptr + heads_at, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _rope_store_kernel(
    qkv_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, tables_ptr,
    q_norm_ptr, k_norm_ptr,
    part_stride, row_stride, table_width, eps, key_scale, value_scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, HALF: tl.constexpr,
    PAGE: tl.constexpr, NUM_PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, DIM_PAD)
    is_rotated = dims < 2 * HALF
    partners = tl.where(dims < HALF, dims + HALF, tl.where(is_rotated, dims - HALF, dims))
    is_query = heads < NUM_HEADS
    is_key = (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    is_value = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS)
    mask = (heads < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    position = tl.load(positions_ptr + token)
    slot = tl.load(slots_ptr + token)
    block = tl.load(tables_ptr + slot.to(tl.int64) * table_width + position // PAGE).to(tl.int64)
    angle_at = position.to(tl.int64) * HALF + tl.where(dims < HALF, dims, dims - HALF)
    cos = tl.load(cos_ptr + angle_at, mask=is_rotated, other=1.0)
    sin = tl.load(sin_ptr + angle_at, mask=is_rotated, other=0.0)
    sin = tl.where(dims < HALF, -sin, sin)
    wait_for_inputs(IS_DEPENDENT)
    row = token.to(tl.int64) * row_stride
    own_at = heads[:, None] * HEAD_DIM + dims[None, :]
    other_at = heads[:, None] * HEAD_DIM + partners[None, :]
    x = _load_heads(qkv_ptr, bias_ptr, row + own_at, own_at, mask, part_stride, NUM_PARTS, HAS_BIAS)
    other = _load_heads(
        qkv_ptr, bias_ptr, row + other_at, other_at, mask, part_stride, NUM_PARTS, HAS_BIAS
    )
    turned_x = x
    if HAS_NORM:
        variance = tl.sum(x * x, axis=1) / HEAD_DIM
        scale = tl.rsqrt(variance + eps)[:, None]
        in_dims = dims < HEAD_DIM
        q_own = tl.load(q_norm_ptr + dims, mask=in_dims, other=0.0).to(tl.float32)
        k_own = tl.load(k_norm_ptr + dims, mask=in_dims, other=0.0).to(tl.float32)
        q_other = tl.load(q_norm_ptr + partners, mask=in_dims, other=0.0).to(tl.float32)
        k_other = tl.load(k_norm_ptr + partners, mask=in_dims, other=0.0).to(tl.float32)
        turned_x = x * scale * tl.where(is_query[:, None], q_own[None, :], k_own[None, :])
        other = other * scale * tl.where(is_query[:, None], q_other[None, :], k_other[None, :])
    turned = (turned_x * cos[None, :] + other * sin[None, :]).to(q_ptr.dtype.element_ty)
    q_at = token.to(tl.int64) * (NUM_HEADS * HEAD_DIM) + own_at
    tl.store(q_ptr + q_at, turned, mask=mask & is_query[:, None])
    kv_heads = tl.where(is_key, heads - NUM_HEADS, heads - NUM_HEADS - NUM_KV_HEADS)
    kv_rows = (block * NUM_KV_HEADS + kv_heads) * PAGE + position % PAGE
    kv_at = kv_rows[:, None] * HEAD_DIM + dims[None, :]
    if k_ptr.dtype.element_ty == tl.float8e4nv:
        key = _narrowed(turned.to(tl.float32), key_scale)
        value = _narrowed(x, value_scale)
    else:
        key = turned
        value = x.to(v_ptr.dtype.element_ty)
    tl.store(k_ptr + kv_at, key, mask=mask & is_key[:, None])
    tl.store(v_ptr + kv_at, value, mask=mask & is_value[:, None])


@triton.jit
def _narrowed(x, scale):
    """Returns x / scale in fp8; numbers beyond its range become its largest one."""
    return tl.minimum(tl.maximum(x / scale, -448.0), 448.0).to(tl.float8e4nv)


_launch_rope_store = Kernel(_rope_store_kernel)


def rope_store(
    qkv: Tensor, bias: Tensor | None, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor, slots: Tensor,
    tables: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, eps: float, num_heads: int,
    dtype: torch.dtype, scales: KvScales = UNSCALED,
) -> Tensor:  # fmt: skip
    """`qkv` is [tokens, width], or [parts, tokens, width] in float32; `bias` belongs to the parts.
    Returns [tokens, heads * head_dim] of `dtype`."""
    num_tokens = positions.shape[0]
    _, num_kv_heads, page, head_dim = keys.shape
    query = torch.empty((num_tokens, num_heads * head_dim), dtype=dtype, device=keys.device)
    is_split = qkv.dim() == 3
    total = num_heads + 2 * num_kv_heads
    _launch_rope_store(
        (num_tokens, triton.cdiv(total, HEADS_PER_PROGRAM)),
        (
            qkv, bias if bias is not None else qkv, query, keys, values, cos, sin, positions,
            slots, tables,
            q_norm if q_norm is not None else qkv, k_norm if k_norm is not None else qkv,
        ),
        (
            qkv.stride(0) if is_split else 0, qkv.stride(-2), tables.shape[1], eps, scales.key,
            scales.value,
        ),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        DIM_PAD=next_power_of_2(head_dim), HALF=cos.shape[1],
        PAGE=page, NUM_PARTS=qkv.shape[0] if is_split else 1, HAS_BIAS=bias is not None,
        HAS_NORM=q_norm is not None,
        HEADS=HEADS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
    return query
