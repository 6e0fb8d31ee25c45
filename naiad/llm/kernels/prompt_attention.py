"""Paged attention of prompt segments: causal, over the part of the sequence that is already in the
cache and over the segment itself.

In:  rotated queries, the cache (which already has the segment's own keys), and the step's tiles.
Out: rows of [tokens, heads * head_dim]. A program handles up to TILE_TOKENS queries of one head.
     Keys before the tile's first query need no mask; the few tiles at the end do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, padded_head_dim, wait_for_inputs
from naiad.llm.step.kv_cache import UNSCALED, KvScales


@triton.jit
def _attend_tiles(
    q, acc, best, total, k_ptr, v_ptr, table, kv_head, low, high, length, positions, scale,
    softcap, window,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_MASKED: tl.constexpr,
    IS_EXACT: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, DIM_PAD)
    in_dims = dims < HEAD_DIM
    for start in range(low, high, TILE_KEYS):
        offsets = start + tl.arange(0, TILE_KEYS)
        if IS_MASKED:
            is_valid = offsets < length
            block = tl.load(table + offsets // PAGE, mask=is_valid, other=0).to(tl.int64)
        else:
            block = tl.load(table + offsets // PAGE).to(tl.int64)
        line = ((block * NUM_KV_HEADS + kv_head) * PAGE + offsets % PAGE) * HEAD_DIM
        at = line[:, None] + dims[None, :]
        if IS_MASKED:
            k = tl.load(k_ptr + at, mask=is_valid[:, None] & in_dims[None, :], other=0.0)
            v = tl.load(v_ptr + at, mask=is_valid[:, None] & in_dims[None, :], other=0.0)
        elif DIM_PAD != HEAD_DIM:
            k = tl.load(k_ptr + at, mask=in_dims[None, :], other=0.0)
            v = tl.load(v_ptr + at, mask=in_dims[None, :], other=0.0)
        else:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        if k.dtype != q.dtype:  # an fp8 cache; `scale` includes that of its keys
            k = k.to(q.dtype)
            v = v.to(q.dtype)
        if IS_EXACT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k))
        if HAS_SOFTCAP:
            scores = (
                softcap
                * (2.0 * tl.sigmoid(2.0 * scores * scale / softcap) - 1.0)
                * 1.4426950408889634
            )
        else:
            scores = scores * (scale * 1.4426950408889634)
        if IS_MASKED:
            distance = positions[:, None] - offsets[None, :]
            is_seen = distance >= 0
            if HAS_WINDOW:
                is_seen = is_seen & (distance < window)
            scores = tl.where(is_seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        safe_best = new_best
        if IS_MASKED:
            safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - safe_best[:, None])
        rescale = tl.exp2(best - safe_best)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        if IS_EXACT:
            acc += tl.dot(weights, v, input_precision="ieee")
        else:
            acc = tl.dot(weights.to(v.dtype), v, acc)
        best = new_best
    return acc, best, total


@triton.jit
def _prompt_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, tiles_ptr, table_width, scale, softcap, window,
    value_scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    TILE_TOKENS: tl.constexpr, TILE_KEYS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr, IS_EXACT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tile = tiles_ptr + tl.program_id(1) * 4
    wait_for_inputs(IS_DEPENDENT)
    first_row = tl.load(tile)
    first_position = tl.load(tile + 1)
    count = tl.load(tile + 2)
    table = tables_ptr + tl.load(tile + 3).to(tl.int64) * table_width
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    index = tl.arange(0, TILE_TOKENS)
    dims = tl.arange(0, DIM_PAD)
    q_mask = (index < count)[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = (
        (first_row + index).to(tl.int64)[:, None] * (NUM_HEADS * HEAD_DIM)
        + head * HEAD_DIM
        + dims[None, :]
    )
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    positions = first_position + index
    length = first_position + count
    best = tl.full((TILE_TOKENS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_TOKENS,), tl.float32)
    acc = tl.zeros((TILE_TOKENS, DIM_PAD), tl.float32)
    low = 0
    if HAS_WINDOW:
        low = tl.maximum(0, (first_position - window + 1) // TILE_KEYS * TILE_KEYS)
    unmasked_end = low
    if not HAS_WINDOW:
        unmasked_end = (first_position + 1) // TILE_KEYS * TILE_KEYS
        acc, best, total = _attend_tiles(
            q, acc, best, total, k_ptr, v_ptr, table, kv_head, low, unmasked_end, length,
            positions, scale, softcap, window,
            NUM_KV_HEADS, HEAD_DIM, DIM_PAD, PAGE, TILE_KEYS, HAS_SOFTCAP, HAS_WINDOW, False,
            IS_EXACT,
        )  # fmt: skip
    acc, best, total = _attend_tiles(
        q, acc, best, total, k_ptr, v_ptr, table, kv_head, unmasked_end, length, length, positions,
        scale, softcap, window,
        NUM_KV_HEADS, HEAD_DIM, DIM_PAD, PAGE, TILE_KEYS, HAS_SOFTCAP, HAS_WINDOW, True, IS_EXACT,
    )  # fmt: skip
    # Rows beyond `count` saw nothing and are not stored.
    out = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    tl.store(out_ptr + q_at, out.to(out_ptr.dtype.element_ty), mask=q_mask)


_launch_prompt_attention = Kernel(_prompt_attention_kernel)


def prompt_attention(
    query: Tensor, out: Tensor, keys: Tensor, values: Tensor, tables: Tensor, tiles: Tensor,
    scale: float, softcap: float, window: int,
    max_length: int, tile_tokens: int = 64, tile_keys: int = 0, num_warps: int = 4,
    num_stages: int = 3, scales: KvScales = UNSCALED,
) -> None:  # fmt: skip
    """`tile_tokens` is the size of the tiles, `max_length` the end of the longest sequence."""
    _, num_kv_heads, page, head_dim = keys.shape
    num_heads = query.shape[1] // head_dim
    if tile_keys == 0:
        tile_keys, num_warps, num_stages = choose_tile(max_length, head_dim, query.dtype)
    _launch_prompt_attention(
        (num_heads, tiles.shape[0]), (query, keys, values, out, tables, tiles),
        (tables.shape[1], scale * scales.key, softcap, window, scales.value),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        DIM_PAD=padded_head_dim(head_dim), PAGE=page,
        TILE_TOKENS=tile_tokens, TILE_KEYS=tile_keys, HAS_SOFTCAP=softcap != 0.0,
        HAS_WINDOW=window != 0,
        IS_EXACT=query.dtype == torch.float32, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def choose_tile(max_length: int, head_dim: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Keys per tile, warps, pipeline stages; measured on an H200."""
    if dtype == torch.float32 or head_dim > 128:
        return (32, 8, 2)
    return (32, 4, 5) if max_length <= 1024 else (64, 4, 3)
