"""Attention over the paged cache for a whole step: the decode kernel computes one-token rows, the
prompt kernel prompt segments.

In:  queries of all rows; keys and values are in the cache, or are passed in and stored first.
Out: [tokens, heads * head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.kernels.decode_attention import DecodeAttention
from naiad.llm.kernels.prompt_attention import prompt_attention
from naiad.llm.kernels.rope_store import rope_store
from naiad.llm.models.operations import AttentionShape
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


class TritonPagedAttention:
    def __init__(self, max_rows: int, max_chunks: int, device: torch.device) -> None:
        self._max_rows = max_rows
        self._max_chunks = max_chunks
        self._device = device
        self._decode: dict[tuple[int, int, int], DecodeAttention] = {}
        self._no_angles = torch.empty((1, 0), dtype=torch.float32, device=device)

    def attend(
        self, query: Tensor, index: int, shape: AttentionShape, step: StepInput, cache: KvCache
    ) -> Tensor:
        """query [tokens, heads * head_dim]."""
        keys, values, tables = cache.keys[index], cache.values[index], cache.block_tables
        scales = cache.scales[index]
        out = torch.empty_like(query)
        if step.num_single:
            assert step.chunks is not None
            decode = self._decode_attention(shape)
            decode(
                query,
                out,
                keys,
                values,
                tables,
                step.chunks,
                shape.scale,
                shape.softcap,
                shape.window,
                step.is_short,
                scales=scales,
            )
        if step.segments:
            assert step.tiles is not None
            longest = max(segment.start + segment.count for segment in step.segments)
            prompt_attention(
                query,
                out,
                keys,
                values,
                tables,
                step.tiles,
                shape.scale,
                shape.softcap,
                shape.window,
                longest,
                scales=scales,
            )
        return out

    def store_and_attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        index: int,
        shape: AttentionShape,
        step: StepInput,
        cache: KvCache,
    ) -> Tensor:
        """Serves models that rotate by themselves; each tensor is [tokens, heads, head_dim]."""
        qkv = torch.cat((query, key, value), dim=1).flatten(1)
        query = rope_store(
            qkv, None, cache.keys[index], cache.values[index], self._no_angles, self._no_angles,
            step.positions, step.slots,
            cache.block_tables, None, None, 0.0, shape.num_heads, qkv.dtype, cache.scales[index],
        )  # fmt: skip
        return self.attend(query, index, shape, step, cache)

    def _decode_attention(self, shape: AttentionShape) -> DecodeAttention:
        """Allocates at the first use of a shape. This happens before any capture, because each
        graph's step runs once uncaptured."""
        key = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        if key not in self._decode:
            self._decode[key] = DecodeAttention(
                self._max_rows, self._max_chunks, *key, self._device
            )
        return self._decode[key]
