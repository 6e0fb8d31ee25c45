"""Paged attention of one-token rows: the query heads that share a KV head are packed into one tile, long rows are split into chunks.

In:  rotated queries, the cache, and the chunk plan of the step. Out: [rows, heads * head_dim].
A program takes one chunk of one row for one KV head. Rows with one chunk are written at once; the others' parts meet in the second kernel.
Rule: the grid depends on the number of rows only, so that captured graphs hold for any lengths; programs without work leave at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import PDL, USE_PDL, next_power_of_2, wait_for_inputs

LOG2_E = 1.4426950408889634


@triton.jit
def _decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, tables_ptr, slots_ptr, positions_ptr, items_ptr, starts_ptr, chunk_ptr,
    table_width, scale, softcap, window,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_EXACT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    row = tl.load(items_ptr + item)
    if row < 0:
        return
    first_item = tl.load(starts_ptr + row)
    num_chunks = tl.load(starts_ptr + row + 1) - first_item
    chunk = tl.load(chunk_ptr)
    length = tl.load(positions_ptr + row) + 1
    table = tables_ptr + tl.load(slots_ptr + row).to(tl.int64) * table_width
    begin = (item - first_item) * chunk
    end = tl.minimum(begin + chunk, length)
    first = begin
    if HAS_WINDOW:
        first = tl.maximum(begin, (length - window) // TILE * TILE)
    group = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    in_dims = dims < HEAD_DIM
    q_mask = (group < GROUP)[:, None] & in_dims[None, :]
    heads = kv_head * GROUP + group
    q_at = row.to(tl.int64) * (NUM_KV_HEADS * GROUP * HEAD_DIM) + heads[:, None] * HEAD_DIM + dims[None, :]
    wait_for_inputs(IS_DEPENDENT)
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    best = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    acc = tl.zeros((GROUP_PAD, DIM_PAD), tl.float32)
    for start in range(first, end, TILE):
        offsets = start + tl.arange(0, TILE)
        is_valid = offsets < end
        block = tl.load(table + offsets // PAGE, mask=is_valid, other=0).to(tl.int64)
        line = ((block * NUM_KV_HEADS + kv_head) * PAGE + offsets % PAGE) * HEAD_DIM
        kv_mask = is_valid[:, None] & in_dims[None, :] if DIM_PAD != HEAD_DIM else is_valid[:, None]
        k = tl.load(k_ptr + line[:, None] + dims[None, :], mask=kv_mask, other=0.0)
        v = tl.load(v_ptr + line[:, None] + dims[None, :], mask=kv_mask, other=0.0)
        if IS_EXACT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        else:
            scores = tl.dot(q, tl.trans(k)) * scale
        if HAS_SOFTCAP:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        is_seen = is_valid
        if HAS_WINDOW:
            is_seen = is_valid & (offsets >= length - window)
        scores = tl.where(is_seen[None, :], scores * 1.4426950408889634, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A tile can lie wholly outside the window: -inf minus -inf must not become NaN.
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - safe_best[:, None])
        rescale = tl.exp2(best - safe_best)
        total = total * rescale + tl.sum(weights, axis=1)
        if IS_EXACT:
            acc = acc * rescale[:, None] + tl.dot(weights, v, input_precision="ieee")
        else:
            acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
        best = new_best
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if num_chunks == 1:
        tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        part = (item.to(tl.int64) * NUM_KV_HEADS * GROUP + heads)
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
        lse = tl.where(total == 0.0, float("-inf"), best + tl.log2(total))
        tl.store(lse_ptr + part, lse, mask=group < GROUP)


@triton.jit
def _combine_kernel(
    part_ptr, lse_ptr, out_ptr, starts_ptr,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, PARTS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(starts_ptr + row)
    count = tl.load(starts_ptr + row + 1) - first
    wait_for_inputs(IS_DEPENDENT)
    if count == 1:
        return
    dims = tl.arange(0, DIM_PAD)
    in_dims = dims < HEAD_DIM
    best = -float("inf")
    total = 0.0
    acc = tl.zeros((DIM_PAD,), tl.float32)
    for start in range(0, count, PARTS):
        parts = start + tl.arange(0, PARTS)
        is_valid = parts < count
        at = (first + parts).to(tl.int64) * NUM_HEADS + head
        lse = tl.load(lse_ptr + at, mask=is_valid, other=float("-inf"))
        new_best = tl.maximum(best, tl.max(lse, axis=0))
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(lse - safe_best)
        rescale = tl.exp2(best - safe_best)
        values = tl.load(part_ptr + at[:, None] * HEAD_DIM + dims[None, :], mask=is_valid[:, None] & in_dims[None, :], other=0.0)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(values * weights[:, None], axis=0)
        best = new_best
    out_at = (row.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + dims
    tl.store(out_ptr + out_at, (acc / total).to(out_ptr.dtype.element_ty), mask=in_dims)


class DecodeAttention:
    """Holds the scratch for parts; one per engine, sized for its largest batch."""

    def __init__(self, max_items: int, num_heads: int, head_dim: int, device: torch.device) -> None:
        self._parts = torch.empty((max_items, num_heads, head_dim), dtype=torch.float32, device=device)
        self._lse = torch.empty((max_items, num_heads), dtype=torch.float32, device=device)

    def __call__(
        self, query: Tensor, out: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor,
        items: Tensor, starts: Tensor, chunk: Tensor, scale: float, softcap: float, window: int,
        tile: int = 64, num_warps: int = 4, num_stages: int = 3,
    ) -> None:  # fmt: skip
        num_rows = starts.shape[0] - 1
        _, num_kv_heads, page, head_dim = keys.shape
        num_heads = query.shape[1] // head_dim
        group, dim_pad = num_heads // num_kv_heads, next_power_of_2(head_dim)
        _decode_attention_kernel[(num_kv_heads, items.shape[0])](
            query, keys, values, out, self._parts, self._lse, tables, slots, positions, items, starts, chunk,
            tables.shape[1], scale, softcap, window,
            NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_PAD=max(16, next_power_of_2(group)), HEAD_DIM=head_dim, DIM_PAD=dim_pad,
            PAGE=page, TILE=tile, HAS_SOFTCAP=softcap != 0.0, HAS_WINDOW=window != 0, IS_EXACT=query.dtype == torch.float32,
            IS_DEPENDENT=USE_PDL, num_warps=num_warps, num_stages=num_stages, **PDL,
        )  # fmt: skip
        _combine_kernel[(num_rows, num_heads)](
            self._parts, self._lse, out, starts,
            NUM_HEADS=num_heads, HEAD_DIM=head_dim, DIM_PAD=dim_pad, PARTS=16, IS_DEPENDENT=USE_PDL, num_warps=4, **PDL,
        )  # fmt: skip
