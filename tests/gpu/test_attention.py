"""Paged attention, rope and the KV store compared with float64, for the head layouts of every model
family with its own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch

from naiad.llm.kernels.decode_attention import DecodeAttention, choose_tile
from naiad.llm.kernels.prompt_attention import prompt_attention
from naiad.llm.kernels.rope_store import rope_store
from naiad.llm.step.chunk_plan import RECORD_WIDTH, ChunkPlanner
from naiad.llm.step.kv_cache import KvScales
from naiad.llm.step.step_stager import TILE_TOKENS
from tests.gpu import reference

LAYOUTS = {
    "llama-3.1-8b": (32, 8, 128, 0.0, 0),
    "qwen3-0.6b": (16, 8, 128, 0.0, 0),
    "qwen3-14b": (40, 8, 128, 0.0, 0),
    "smollm2-135m": (9, 3, 64, 0.0, 0),
    "mistral-window": (32, 8, 128, 0.0, 100),
    "falcon-7b": (71, 1, 64, 0.0, 0),
    "persimmon-8b": (64, 64, 64, 0.0, 0),
    "phi3-mini": (32, 32, 96, 0.0, 90),
    "gemma2-9b": (16, 8, 256, 50.0, 77),
    "tiny-heads": (4, 2, 8, 0.0, 0),
}


class Pages:
    """A cache filled with noise, and tables that map each slot to shuffled blocks."""

    def __init__(
        self,
        layout: str,
        dtype: torch.dtype,
        device: torch.device,
        lengths: list[int],
        page: int = 16,
        is_fp8: bool = False,
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim, self.softcap, self.window = LAYOUTS[
            layout
        ]
        if device.type == "cpu":
            self.num_heads = self.num_heads // self.num_kv_heads * min(self.num_kv_heads, 2)
            self.num_kv_heads = min(self.num_kv_heads, 2)
        width = max(-(-length // page) for length in lengths)
        num_blocks = width * len(lengths) + 1
        shape = (num_blocks, self.num_kv_heads, page, self.head_dim)
        self.scales = KvScales(0.02, 0.5) if is_fp8 else KvScales()
        stored = torch.float8_e4m3fn if is_fp8 else dtype
        self.keys = (torch.randn(shape, device=device) / self.scales.key).to(stored)
        self.values = (torch.randn(shape, device=device) / self.scales.value).to(stored)
        self.tables = (torch.randperm(num_blocks - 1, device=device).to(torch.int32) + 1).view(
            len(lengths), width
        )
        self.lengths = lengths
        self.scale = self.head_dim**-0.5

    def key_and_value(self, slot: int, length: int) -> list[torch.Tensor]:
        """Returns what the slot's blocks stand for, each as [kv heads, length, head_dim]."""
        return [
            (pages.float()[self.tables[slot].long()] * scale)
            .transpose(0, 1)
            .flatten(1, 2)[:, :length]
            for pages, scale in ((self.keys, self.scales.key), (self.values, self.scales.value))
        ]


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_attention_matches_float64(
    layout: str, is_fp8: bool, dtype: torch.dtype, device: torch.device, is_small: bool
) -> None:
    torch.manual_seed(hash(layout) % 1000)
    lengths = [1, 130, 290] if is_small else [1, 2, 63, 64, 65, 500, 1024, 3001, 127, 128, 129]
    pages = Pages(layout, dtype, device, lengths, is_fp8=is_fp8)
    planner = ChunkPlanner(132, pages.num_kv_heads)
    planner.budget = 3 if is_small else planner.budget
    records = np.zeros(planner.max_chunks(len(lengths)) * RECORD_WIDTH, np.int32)
    num_chunks = planner.plan(
        np.arange(len(lengths), dtype=np.int32), np.array(lengths, np.int32), records
    )
    assert num_chunks > len(lengths), "the plan should split some row"
    query = torch.randn((len(lengths), pages.num_heads * pages.head_dim), device=device).to(dtype)
    out = torch.empty_like(query)
    attend = DecodeAttention(
        len(lengths),
        records.shape[0] // RECORD_WIDTH,
        pages.num_heads,
        pages.num_kv_heads,
        pages.head_dim,
        device,
    )
    chunks = torch.from_numpy(records).to(device).view(-1, RECORD_WIDTH)
    group = pages.num_heads // pages.num_kv_heads
    tiles = {
        choose_tile(rows, group, pages.head_dim, dtype, is_short)
        for rows in (1, 16, 64, 256)
        for is_short in (False, True)
    }
    for tile in sorted(tiles):
        for _ in range(2):  # The second run starts with the counters that the first one left.
            reference.poison(out)
            attend(
                query,
                out,
                pages.keys,
                pages.values,
                pages.tables,
                chunks,
                pages.scale,
                pages.softcap,
                pages.window,
                False,
                *tile,
                scales=pages.scales,
            )
        for row, length in enumerate(lengths):
            heads = query[row].view(1, pages.num_heads, pages.head_dim)
            key, value = pages.key_and_value(row, length)
            expected = reference.attention(
                heads, key, value, length - 1, pages.scale, pages.softcap, pages.window
            ).flatten()
            assert reference.relative_error(out[row], expected) < reference.TOLERANCE[dtype], (
                tile,
                row,
                length,
            )


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prompt_attention_matches_float64(
    layout: str, is_fp8: bool, dtype: torch.dtype, device: torch.device, is_small: bool
) -> None:
    """The segments have a cached prefix or none, and are shorter or longer than a tile."""
    torch.manual_seed(hash(layout) % 1000)
    segments = (
        [(0, 20), (37, 5), (100, 140)]
        if is_small
        else [(0, 2), (0, 128), (0, 129), (5, 64), (512, 300), (1000, 1), (0, 1500), (77, 700)]
    )
    lengths = [start + count for start, count in segments]
    pages = Pages(layout, dtype, device, lengths, is_fp8=is_fp8)
    total = sum(count for _, count in segments)
    query = torch.randn((total, pages.num_heads * pages.head_dim), device=device).to(dtype)
    out = reference.poison(torch.empty_like(query))
    tiles, first = [], 0
    for slot, (start, count) in enumerate(segments):
        tiles += [
            (first + offset, start + offset, min(TILE_TOKENS, count - offset), slot)
            for offset in range(0, count, TILE_TOKENS)
        ]
        first += count
    prompt_attention(
        query,
        out,
        pages.keys,
        pages.values,
        pages.tables,
        torch.tensor(tiles, dtype=torch.int32, device=device),
        pages.scale,
        pages.softcap,
        pages.window,
        max(lengths),
        scales=pages.scales,
    )
    first = 0
    for slot, (start, count) in enumerate(segments):
        heads = query[first : first + count].view(count, pages.num_heads, pages.head_dim)
        key, value = pages.key_and_value(slot, start + count)
        expected = reference.attention(
            heads, key, value, start, pages.scale, pages.softcap, pages.window
        ).flatten(1)
        assert (
            reference.relative_error(out[first : first + count], expected)
            < reference.TOLERANCE[dtype]
        ), (start, count)
        first += count


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("has_norm", [False, True])
def test_rope_store_rotates_and_stores(
    layout: str, has_norm: bool, is_split: bool, device: torch.device, narrow: torch.dtype
) -> None:
    torch.manual_seed(hash(layout) % 1000)
    dtype, num_tokens, eps = narrow, 7, 1e-6
    pages = Pages(layout, dtype, device, [64, 64, 64])
    half = pages.head_dim // (4 if layout == "persimmon-8b" else 2)
    width = (pages.num_heads + 2 * pages.num_kv_heads) * pages.head_dim
    parts = torch.randn((3, num_tokens, width), device=device)
    bias = torch.randn(width, device=device).to(dtype) if is_split else None
    qkv = parts if is_split else parts.sum(0).to(dtype)
    whole = (
        parts.double().sum(0) + bias.double() if is_split and bias is not None else qkv.double()
    ).view(num_tokens, -1, pages.head_dim)
    angles = torch.rand((64, half), device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    positions = torch.tensor([0, 1, 17, 63, 5, 31, 32], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 1, 2, 0, 2, 1, 0], dtype=torch.int32, device=device)
    weights = (torch.rand((2, pages.head_dim), device=device) + 0.5).to(dtype)
    reference.poison(pages.keys)
    reference.poison(pages.values)
    query = rope_store(
        qkv, bias, pages.keys, pages.values, cos, sin, positions, slots, pages.tables,
        weights[0] if has_norm else None, weights[1] if has_norm else None, eps, pages.num_heads,
        dtype,
    )  # fmt: skip
    q, k, v = whole.split([pages.num_heads, pages.num_kv_heads, pages.num_kv_heads], dim=1)
    if has_norm:
        q, k = reference.rms_norm(q, weights[0], eps), reference.rms_norm(k, weights[1], eps)
    q, k = (reference.rotate(x, cos[positions.long()], sin[positions.long()]) for x in (q, k))
    assert reference.relative_error(query, q.flatten(1)) < 6e-3
    for token, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist(), strict=True)):
        block = int(pages.tables[slot, position // 16])
        assert reference.relative_error(pages.keys[block, :, position % 16], k[token]) < 6e-3
        assert reference.relative_error(pages.values[block, :, position % 16], v[token]) < 6e-3
    num_written = num_tokens * pages.num_kv_heads * pages.head_dim
    assert int(torch.isfinite(pages.keys).sum()) == num_written, (
        "keys were written outside of their places"
    )
    assert int(torch.isfinite(pages.values).sum()) == num_written


def test_rope_store_writes_fp8(device: torch.device, narrow: torch.dtype) -> None:
    """A key or value beyond the range of fp8 becomes its largest number, not NaN."""
    torch.manual_seed(5)
    pages = Pages("llama-3.1-8b", narrow, device, [32, 32], is_fp8=True)
    width = (pages.num_heads + 2 * pages.num_kv_heads) * pages.head_dim
    qkv = torch.randn((3, width), device=device)
    qkv[2] *= 1000.0
    positions = torch.tensor([0, 17, 31], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 1, 0], dtype=torch.int32, device=device)
    angles = torch.rand((32, pages.head_dim // 2), device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    qkv = qkv.to(narrow)
    query = rope_store(
        qkv, None, pages.keys, pages.values, cos, sin, positions, slots, pages.tables,
        None, None, 0.0, pages.num_heads, narrow, pages.scales,
    )  # fmt: skip
    assert query.dtype == narrow
    heads = qkv.double().view(3, -1, pages.head_dim)
    _, k, v = heads.split([pages.num_heads, pages.num_kv_heads, pages.num_kv_heads], dim=1)
    k = reference.rotate(k, cos[positions.long()], sin[positions.long()])
    # The interpreter loses the carry when it rounds up to a power of two.
    tolerance = 0.04 if device.type == "cuda" else 0.2
    for token, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist(), strict=True)):
        for stored, whole, scale in (
            (pages.keys, k[token], pages.scales.key),
            (pages.values, v[token], pages.scales.value),
        ):
            block = int(pages.tables[slot, position // 16])
            found = stored.float()[block, :, position % 16] * scale
            expected = whole.clamp(-448 * scale, 448 * scale)
            assert reference.relative_error(found, expected) < tolerance
