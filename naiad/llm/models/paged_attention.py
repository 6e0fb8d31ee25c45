"""Attention over one layer's paged cache in plain PyTorch, on a CPU.

In:  rotated queries [tokens, heads, head_dim], keys and values [tokens, 2 * KV heads, head_dim],
     and the step's layout.
Out: [tokens, heads * head_dim]; keys and values are in the cache. One-token rows are attended to
     group by group: whole pages are gathered into the order that the products want, in one copy.
     Query heads that share a KV head are rows of one product. Prompts are attended to one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.models.operations import AttentionShape
from naiad.llm.models.step_layout import Reach, StepLayout

_MAX_LONE_VALUES = 1 << 20
"""Up to so many keys and values, one thread is faster than two: threads that sleep while they wait
need some 40 us to wake up, and a group takes four operations."""


class PagedLayer:
    def __init__(self, pair: Tensor) -> None:
        """`pair` [keys and values, blocks, KV heads, block_size, head_dim]."""
        self._lines = pair.view(-1, pair.shape[4])
        self._pages = pair.view(-1, pair.shape[3] * pair.shape[4])

    def attend(
        self, query: Tensor, key_value: Tensor, shape: AttentionShape, layout: StepLayout
    ) -> Tensor:
        self._lines.index_copy_(
            0, layout.targets(shape.num_kv_heads), key_value.reshape(-1, shape.head_dim)
        )
        step = layout.step
        if not step.segments and len(layout.groups) == 1:
            reach = layout.group_reach(layout.groups[0], shape, query.dtype)
            if reach.pages.numel() * self._pages.shape[1] > _MAX_LONE_VALUES:
                return self._attend_group(query, reach, shape)
            with _one_thread():
                return self._attend_group(query, reach, shape)
        out = query.new_empty((query.shape[0], shape.num_heads * shape.head_dim))
        for group in layout.groups:
            reach = layout.group_reach(group, shape, query.dtype)
            if group.rows is None:
                out[: step.num_single] = self._attend_group(query[: step.num_single], reach, shape)
            else:
                out[group.rows] = self._attend_group(query[group.rows], reach, shape)
        for segment in step.segments:
            rows = slice(segment.first_row, segment.first_row + segment.count)
            if segment.start == 0 and (not shape.window or segment.count <= shape.window):
                key, value = key_value[rows].transpose(0, 1).split(shape.num_kv_heads)
                out[rows] = _attend_prompt(query[rows], key, value, None, shape)
            else:
                reach = layout.prompt_reach(segment, shape, query.dtype)
                key, value = self._gather(reach, shape)
                out[rows] = _attend_prompt(query[rows], key, value, reach.mask, shape)
        return out

    def _attend_group(self, query: Tensor, reach: Reach, shape: AttentionShape) -> Tensor:
        """One token of each of several sequences."""
        grouped = query.reshape(query.shape[0] * shape.num_kv_heads, -1, shape.head_dim)
        key, value = self._gather(reach, shape)
        if shape.softcap:
            scores = _soft_capped(torch.bmm(grouped, key.transpose(1, 2)), shape) + reach.mask
            mixed = torch.bmm(
                torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype), value
            )
        elif query.dtype == torch.float32:
            scores = torch.baddbmm(reach.mask, grouped, key.transpose(1, 2), alpha=shape.scale)
            mixed = torch.bmm(torch.softmax(scores, dim=-1), value)
        else:  # products would round the scores to the narrow type; this keeps them wide
            mixed = F.scaled_dot_product_attention(
                grouped[None], key[None], value[None], attn_mask=reach.mask[None], scale=shape.scale
            )  # fmt: skip
        return mixed.reshape(query.shape[0], -1)

    def _gather(self, reach: Reach, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        """[rows * KV heads, places, head_dim] each."""
        key, value = (
            self._pages.index_select(0, reach.pages)
            .view(2, -1, reach.mask.shape[-1], shape.head_dim)
            .unbind(0)
        )
        return key, value


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _attend_prompt(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    """key and value [KV heads, places, head_dim]; without a mask the places are the tokens
    themselves."""
    heads = query.transpose(0, 1)
    if shape.softcap:
        mixed = _attend_capped(heads, key, value, mask, shape)
    else:
        mixed = F.scaled_dot_product_attention(
            heads[None],
            key[None],
            value[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=shape.scale,
            enable_gqa=shape.num_heads != shape.num_kv_heads,
        )[0]
    return mixed.transpose(0, 1).flatten(1)


def _attend_capped(
    heads: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    group, count = shape.num_heads // shape.num_kv_heads, heads.shape[1]
    if mask is None:
        mask = torch.full((count, count), float("-inf"), dtype=heads.dtype).triu_(1)
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = _soft_capped(torch.matmul(heads, key.transpose(1, 2)), shape) + mask
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(heads.dtype), value)


def _soft_capped(scores: Tensor, shape: AttentionShape) -> Tensor:
    return torch.tanh(scores * (shape.scale / shape.softcap)) * shape.softcap
