"""Attention over the paged cache in plain PyTorch, on a CPU.

In:  rotated queries, keys and values of a step's tokens [tokens, heads, head_dim], and the step's layout. Out: [tokens, heads * head_dim].
One-token rows are attended to group by group: whole pages are gathered into the order that the products want, in one copy.
Query heads that share a KV head are rows of one product. Prompts are attended to one by one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kv_cache import KvCache
from naiad.llm.models.operations import AttentionShape
from naiad.llm.models.step_layout import Reach, StepLayout


def store(key: Tensor, value: Tensor, index: int, layout: StepLayout, cache: KvCache) -> None:
    head_dim = key.shape[2]
    targets = layout.targets(key.shape[1])
    cache.keys[index].view(-1, head_dim).index_copy_(0, targets, key.reshape(-1, head_dim))
    cache.values[index].view(-1, head_dim).index_copy_(0, targets, value.reshape(-1, head_dim))


def attend(query: Tensor, key: Tensor, value: Tensor, index: int, shape: AttentionShape, layout: StepLayout, cache: KvCache) -> Tensor:
    """Keys and values are stored already; those of the step itself are given as well, for prompts that read no others."""
    step = layout.step
    if not step.segments and len(layout.groups) == 1:
        return _attend_group(query, index, layout.group_reach(layout.groups[0], shape, query.dtype), shape, cache).flatten(1)
    out = torch.empty_like(query)
    for group in layout.groups:
        reach = layout.group_reach(group, shape, query.dtype)
        if group.rows is None:
            out[: step.num_single] = _attend_group(query[: step.num_single], index, reach, shape, cache)
        else:
            out[group.rows] = _attend_group(query[group.rows], index, reach, shape, cache)
    for segment in step.segments:
        rows = slice(segment.first_row, segment.first_row + segment.count)
        if segment.start == 0 and (not shape.window or segment.count <= shape.window):
            out[rows] = _attend_prompt(query[rows], key[rows].transpose(0, 1), value[rows].transpose(0, 1), None, shape)
        else:
            out[rows] = _attend_segment(query[rows], index, layout.prompt_reach(segment, shape, query.dtype), shape, cache)
    return out.flatten(1)


def _attend_group(query: Tensor, index: int, reach: Reach, shape: AttentionShape, cache: KvCache) -> Tensor:
    """One token of each of several sequences: [rows, heads, head_dim]."""
    num_rows, num_places = query.shape[0], reach.mask.shape[-1]
    grouped = query.reshape(num_rows * shape.num_kv_heads, -1, shape.head_dim)
    key = _gather(cache.keys[index], reach).view(-1, num_places, shape.head_dim)
    value = _gather(cache.values[index], reach).view(-1, num_places, shape.head_dim)
    if shape.softcap:
        scores = _soft_capped(torch.bmm(grouped, key.transpose(1, 2)), shape) + reach.mask
    elif query.dtype == torch.float32:
        scores = torch.baddbmm(reach.mask, grouped, key.transpose(1, 2), alpha=shape.scale)
    else:  # products would round the scores to the narrow type; this keeps them wide
        return _attend_wide(grouped, key, value, reach.mask, shape).view(query.shape)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.bmm(weights, value).view(query.shape)


def _attend_wide(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, shape: AttentionShape) -> Tensor:
    return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask[None], scale=shape.scale)[0]


def _attend_segment(query: Tensor, index: int, reach: Reach, shape: AttentionShape, cache: KvCache) -> Tensor:
    """A piece of a prompt, which sees what is cached before it."""
    form = (shape.num_kv_heads, reach.mask.shape[-1], shape.head_dim)
    key, value = _gather(cache.keys[index], reach).view(form), _gather(cache.values[index], reach).view(form)
    return _attend_prompt(query, key, value, reach.mask, shape)


def _attend_prompt(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: AttentionShape) -> Tensor:
    """key and value [KV heads, places, head_dim]; without a mask the places are the tokens themselves."""
    heads = query.transpose(0, 1)
    if shape.softcap:
        if mask is None:
            mask = torch.full((query.shape[0], query.shape[0]), float("-inf"), dtype=query.dtype).triu_(1)
        return _attend_capped(heads, key, value, mask, shape).transpose(0, 1)
    mixed = F.scaled_dot_product_attention(
        heads[None],
        key[None],
        value[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=shape.scale,
        enable_gqa=shape.num_heads != shape.num_kv_heads,
    )
    return mixed[0].transpose(0, 1)


def _attend_capped(heads: Tensor, key: Tensor, value: Tensor, mask: Tensor, shape: AttentionShape) -> Tensor:
    group = shape.num_heads // shape.num_kv_heads
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = _soft_capped(torch.matmul(heads, key.transpose(1, 2)), shape) + mask
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(heads.dtype), value)


def _soft_capped(scores: Tensor, shape: AttentionShape) -> Tensor:
    return torch.tanh(scores * (shape.scale / shape.softcap)) * shape.softcap


def _gather(pages: Tensor, reach: Reach) -> Tensor:
    return pages.view(pages.shape[0] * pages.shape[1], -1).index_select(0, reach.pages)
