"""Paged attention of one-token rows: the query heads that share a KV head are packed into one tile,
long rows are split into chunks.

In:  rotated queries, the cache, and the chunk records of the step. Out: [rows, heads * head_dim]. A
     program takes one chunk of one row for one KV head. Rows with one chunk are written at once; of
     the others, each program leaves its part, and the one that comes last puts the parts together:
     a counter per row and KV head tells it, and is zero again when it is done.
Rule: the grid depends on the number of rows only, so that captured graphs hold for any lengths;
      programs without work leave at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, padded_head_dim, wait_for_inputs
from naiad.llm.step.batch_ladder import MAX_ROWS_ONE_WAY
from naiad.llm.step.kv_cache import UNSCALED, KvScales


@triton.jit
def _decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, counters_ptr, tables_ptr, records_ptr,
    table_width, scale, softcap, window, value_scale,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    GROUP_OUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_EXACT: tl.constexpr, IS_FP8: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    chunk = tl.program_id(1)
    record = records_ptr + chunk * 8
    row = tl.load(record)
    if row < 0:
        return
    table = tables_ptr + tl.load(record + 1).to(tl.int64) * table_width
    begin = tl.load(record + 2)
    end = tl.load(record + 3)
    length = tl.load(record + 4)
    first_chunk = tl.load(record + 5)
    num_chunks = tl.load(record + 6)
    first = begin
    if HAS_WINDOW:
        first = tl.maximum(begin, (length - window) // TILE * TILE)
    group = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    in_dims = dims < HEAD_DIM
    q_mask = (group < GROUP)[:, None] & in_dims[None, :]
    heads = kv_head * GROUP + group
    q_at = (
        row.to(tl.int64) * (NUM_KV_HEADS * GROUP * HEAD_DIM)
        + heads[:, None] * HEAD_DIM
        + dims[None, :]
    )
    wait_for_inputs(IS_DEPENDENT)
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    if IS_FP8 and not IS_EXACT:
        # One instruction turns fp8 into float16; bfloat16 takes a way through float32.
        q = q.to(tl.float16)
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
        if IS_FP8:  # `scale` includes that of the keys
            k = k.to(q.dtype)
            v = v.to(q.dtype)
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
    acc = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    if num_chunks == 1:
        tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        part = chunk.to(tl.int64) * NUM_KV_HEADS * GROUP + heads
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
        lse = tl.where(total == 0.0, float("-inf"), best + tl.log2(total))
        tl.store(lse_ptr + part, lse, mask=group < GROUP)
        tl.debug_barrier()  # all threads have stored before the one that counts says so
        counter = counters_ptr + row * NUM_KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_chunks - 1:
            tl.store(counter, 0)
            _combine(
                part_ptr, lse_ptr, out_ptr, row, kv_head, first_chunk, num_chunks,
                NUM_KV_HEADS, GROUP, GROUP_OUT, HEAD_DIM, DIM_PAD,
                16 // GROUP_OUT if GROUP_OUT < 16 else 1,
            )  # fmt: skip


@triton.jit
def _combine(
    part_ptr, lse_ptr, out_ptr, row, kv_head, first_chunk, num_chunks,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_OUT: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Past the L1 cache: the parts come from other SMs."""
    group = tl.arange(0, GROUP_OUT)
    dims = tl.arange(0, DIM_PAD)
    in_group = group < GROUP
    heads = kv_head * GROUP + group
    mask = in_group[:, None] & (dims < HEAD_DIM)[None, :]
    best = tl.full((GROUP_OUT,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_OUT,), tl.float32)
    acc = tl.zeros((GROUP_OUT, DIM_PAD), tl.float32)
    for start in range(0, num_chunks, PARTS):
        parts = start + tl.arange(0, PARTS)
        is_valid = parts < num_chunks
        at = (first_chunk + parts).to(tl.int64)[:, None] * (NUM_KV_HEADS * GROUP) + heads[None, :]
        lse = tl.load(
            lse_ptr + at,
            mask=is_valid[:, None] & in_group[None, :],
            other=float("-inf"),
            cache_modifier=".cg",
        )
        values = tl.load(
            part_ptr + at[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=is_valid[:, None, None] & mask[None, :, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        new_best = tl.maximum(best, tl.max(lse, axis=0))
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(lse - safe_best[None, :])
        rescale = tl.exp2(best - safe_best)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale[:, None] + tl.sum(values * weights[:, :, None], axis=0)
        best = new_best
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = (row.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=mask)


_launch_decode_attention = Kernel(_decode_attention_kernel)


class DecodeAttention:
    """Holds the scratch for parts, and the counters; one per engine, sized for its largest
    batch."""

    def __init__(
        self,
        max_rows: int,
        max_chunks: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
    ) -> None:
        self._parts = torch.empty(
            (max_chunks, num_heads, head_dim), dtype=torch.float32, device=device
        )
        self._lse = torch.empty((max_chunks, num_heads), dtype=torch.float32, device=device)
        self._counters = torch.zeros(max_rows * num_kv_heads, dtype=torch.int32, device=device)

    def __call__(
        self, query: Tensor, out: Tensor, keys: Tensor, values: Tensor, tables: Tensor,
        chunks: Tensor, scale: float, softcap: float,
        window: int, is_short: bool = False, tile: int = 0, num_warps: int = 4, num_stages: int = 3,
        scales: KvScales = UNSCALED,
    ) -> None:  # fmt: skip
        """`chunks` are the records of chunk_plan.py. Configurations measured on an H200."""
        _, num_kv_heads, page, head_dim = keys.shape
        num_heads = query.shape[1] // head_dim
        group = num_heads // num_kv_heads
        if tile == 0:
            tile, num_warps, num_stages = choose_tile(
                query.shape[0], group, head_dim, query.dtype, is_short
            )
        _launch_decode_attention(
            (num_kv_heads, chunks.shape[0]),
            (query, keys, values, out, self._parts, self._lse, self._counters, tables, chunks),
            (tables.shape[1], scale * scales.key, softcap, window, scales.value),
            NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_PAD=max(16, next_power_of_2(group)),
            GROUP_OUT=next_power_of_2(group),
            HEAD_DIM=head_dim, DIM_PAD=padded_head_dim(head_dim), PAGE=page, TILE=tile,
            HAS_SOFTCAP=softcap != 0.0, HAS_WINDOW=window != 0,
            IS_EXACT=query.dtype == torch.float32, IS_FP8=keys.dtype == torch.float8_e4m3fn,
            num_warps=num_warps, num_stages=num_stages,
        )  # fmt: skip


def choose_tile(
    num_rows: int, group: int, head_dim: int, dtype: torch.dtype, is_short: bool
) -> tuple[int, int, int]:
    """Keys per tile, warps, pipeline stages. 128 keys fill an SM alone: the best where there are
    many of them, else a tenth slower. A few rows are all latency: small tiles, in many small chunks
    (chunk_plan.py)."""
    if dtype == torch.float32 or head_dim > 128 or group > 16:
        return (32, 4, 3)
    if num_rows <= 8:
        return (64, 4, 2)
    if num_rows <= 32:
        return (64, 2, 5)
    if 32 < num_rows <= MAX_ROWS_ONE_WAY:
        return (64, 4, 3)
    return (32, 1, 4) if is_short and num_rows > MAX_ROWS_ONE_WAY else (128, 4, 3)
