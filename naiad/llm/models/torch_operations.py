"""The operations in plain PyTorch: the CPU path, and the reference that the CUDA kernels are checked against."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kv_cache import KvCache
from naiad.llm.models.decoder_config import Activation, NormKind
from naiad.llm.models.decoder_weights import LayerWeights, Linear, Norm
from naiad.llm.models.operations import AttentionShape, Stream
from naiad.llm.step_input import PromptSegment, StepInput

MAX_PADDING = 2
"""One-token rows are attended to together where that reads at most so many times what each for itself would."""


def apply_norm(x: Tensor, norm: Norm) -> Tensor:
    if norm.kind is NormKind.LAYER:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.weight.dtype == x.dtype:
        return norm.weight * wide.to(x.dtype)
    return (norm.weight * wide).to(x.dtype)


def apply_activation(x: Tensor, activation: Activation, is_gated: bool) -> Tensor:
    gate, up = x.chunk(2, dim=-1) if is_gated else (x, None)
    match activation:
        case Activation.SILU:
            out = F.silu(gate)
        case Activation.GELU:
            out = F.gelu(gate)
        case Activation.GELU_TANH:
            out = F.gelu(gate, approximate="tanh")
        case Activation.RELU2:
            out = F.relu(gate).square()
    return out if up is None else out * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]; the first 2 * cos.shape[1] values of each head turn, in two halves."""
    half = cos.shape[1]
    cos, sin = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), dim=-1)


class TorchOperations:
    def __init__(self, cos: Tensor, sin: Tensor, next_tokens: Tensor) -> None:
        self.cos = cos
        self.sin = sin
        self.next_tokens = next_tokens

    def embed(self, step: StepInput, table: Tensor, scale: float, cache: KvCache) -> Stream:
        tokens = torch.where(step.token_ids < 0, self.next_tokens[step.slots.long()], step.token_ids)
        embedded = F.embedding(tokens.long(), table)
        return Stream(embedded if scale == 1.0 else embedded * torch.tensor(scale, dtype=embedded.dtype))

    def norm(self, stream: Stream, norm: Norm) -> Tensor:
        return apply_norm(stream.value, norm)

    def norm_tensor(self, x: Tensor, norm: Norm) -> Tensor:
        return apply_norm(x, norm)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return F.linear(x, linear.weight, linear.bias)

    def linear_add(self, x: Tensor, linear: Linear, stream: Stream) -> Stream:
        return Stream(stream.value + F.linear(x, linear.weight, linear.bias))

    def add(self, x: Tensor, stream: Stream) -> Stream:
        return Stream(stream.value + x)

    def norm_linear(self, stream: Stream, norm: Norm, linear: Linear) -> Tensor:
        return F.linear(apply_norm(stream.value, norm), linear.weight, linear.bias)

    def activate(self, x: Tensor, activation: Activation, is_gated: bool) -> Tensor:
        return apply_activation(x, activation, is_gated)

    def norm_activate(self, stream: Stream, norm: Norm, up: Linear, activation: Activation, is_gated: bool) -> Tensor:
        return apply_activation(self.norm_linear(stream, norm, up), activation, is_gated)

    def attend(self, qkv: Tensor, layer: LayerWeights, index: int, shape: AttentionShape, step: StepInput, cache: KvCache) -> Tensor:
        query, key, value = split_heads(qkv, shape)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = apply_norm(query, layer.q_norm), apply_norm(key, layer.k_norm)
        positions = step.positions.long()
        cos, sin = self.cos[positions], self.sin[positions]
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        return self.store_and_attend(query, key, value, index, shape, step, cache)

    def store_and_attend(
        self, query: Tensor, key: Tensor, value: Tensor, index: int, shape: AttentionShape, step: StepInput, cache: KvCache
    ) -> Tensor:
        """For models that rotate on their own: [tokens, heads, head_dim] each."""
        store(key, value, index, step, cache)
        return paged_attention(query, index, shape, step, cache)

    def logits(self, stream: Stream, norm: Norm, head: Linear, step: StepInput, softcap: float) -> Tensor:
        rows = stream.value if step.sample_rows is None else stream.value[step.sample_rows.long()]
        logits = F.linear(apply_norm(rows, norm), head.weight, head.bias)
        return torch.tanh(logits / softcap) * softcap if softcap else logits


def split_heads(qkv: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
    query, key, value = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    return query, key, value


def store(key: Tensor, value: Tensor, index: int, step: StepInput, cache: KvCache) -> None:
    positions = step.positions.long()
    blocks = cache.block_tables[step.slots.long(), positions // cache.block_size].long()
    offsets = positions % cache.block_size
    cache.keys[index][blocks, :, offsets] = key
    cache.values[index][blocks, :, offsets] = value


def paged_attention(query: Tensor, index: int, shape: AttentionShape, step: StepInput, cache: KvCache) -> Tensor:
    """query [tokens, heads, head_dim], rotated; keys and values are stored already."""
    out = torch.empty_like(query)
    slots, positions = step.slots.tolist(), step.positions.tolist()
    num_single = step.num_single
    longest = max(positions[:num_single], default=0) + 1
    are_alike = num_single > 1 and num_single * longest <= MAX_PADDING * (sum(positions[:num_single]) + num_single)
    if are_alike and not shape.softcap:
        out[:num_single] = _attend_singles(query[:num_single], index, shape, step, cache, longest)
        singles = []
    else:
        singles = [PromptSegment(row, 1, positions[row], slots[row]) for row in range(num_single)]
    for segment in (*singles, *step.segments):
        rows = slice(segment.first_row, segment.first_row + segment.count)
        key, value = _gather(index, segment, cache)
        out[rows] = _attend_one(query[rows], key, value, segment.start, shape)
    return out.reshape(query.shape[0], -1)


def _attend_singles(query: Tensor, index: int, shape: AttentionShape, step: StepInput, cache: KvCache, longest: int) -> Tensor:
    """All one-token rows at once, each padded to the longest; what the padding reads is masked."""
    slots, positions = step.slots[: query.shape[0]].long(), step.positions[: query.shape[0], None]
    blocks = cache.block_tables[slots, : -(-longest // cache.block_size)].long()

    def lay_out(pages: Tensor) -> Tensor:
        return pages[blocks].transpose(1, 2).flatten(2, 3)[:, :, :longest]

    places = torch.arange(longest, device=query.device)[None, :]
    allowed = places <= positions if not shape.window else (places <= positions) & (places > positions - shape.window)
    mixed = F.scaled_dot_product_attention(
        query[:, :, None],
        lay_out(cache.keys[index]),
        lay_out(cache.values[index]),
        attn_mask=allowed[:, None, None, :],
        scale=shape.scale,
        enable_gqa=shape.num_heads != shape.num_kv_heads,
    )
    return mixed[:, :, 0]


def _gather(index: int, segment: PromptSegment, cache: KvCache) -> tuple[Tensor, Tensor]:
    """The segment's whole history and itself: [KV heads, length, head_dim]."""
    length = segment.start + segment.count
    blocks = cache.block_tables[segment.slot, : -(-length // cache.block_size)].long()

    def lay_out(pages: Tensor) -> Tensor:
        return pages[blocks].transpose(0, 1).flatten(1, 2)[:, :length]

    return lay_out(cache.keys[index]), lay_out(cache.values[index])


def _attend_one(query: Tensor, key: Tensor, value: Tensor, start: int, shape: AttentionShape) -> Tensor:
    count, length = query.shape[0], key.shape[1]
    heads = query.transpose(0, 1)
    if count == 1 and not shape.softcap:
        first = max(0, length - shape.window) if shape.window else 0
        mixed = F.scaled_dot_product_attention(
            heads[None], key[None, :, first:], value[None, :, first:], scale=shape.scale, enable_gqa=shape.num_heads != shape.num_kv_heads
        )
        return mixed[0].transpose(0, 1)
    distance = torch.arange(start, start + count, device=query.device)[:, None] - torch.arange(length, device=query.device)[None, :]
    allowed = distance >= 0 if not shape.window else (distance >= 0) & (distance < shape.window)
    if shape.softcap:
        return _soft_capped(heads, key, value, allowed, shape).transpose(0, 1)
    mixed = F.scaled_dot_product_attention(
        heads[None], key[None], value[None], attn_mask=allowed, scale=shape.scale, enable_gqa=shape.num_heads != shape.num_kv_heads
    )
    return mixed[0].transpose(0, 1)


def _soft_capped(heads: Tensor, key: Tensor, value: Tensor, allowed: Tensor, shape: AttentionShape) -> Tensor:
    group = shape.num_heads // shape.num_kv_heads
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = torch.matmul(heads, key.transpose(1, 2)) * shape.scale
    scores = torch.tanh(scores / shape.softcap) * shape.softcap
    weights = torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1, dtype=torch.float32).to(heads.dtype)
    return torch.matmul(weights, value)
