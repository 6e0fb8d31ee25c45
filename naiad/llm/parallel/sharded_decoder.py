"""A decoder of which each rank computes its part. Same operations as Decoder; in addition the ranks
sum what they write to the residual stream and gather the logits.

Rule: every rank gets the same StepInput and launches the same collectives in the same order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from naiad.llm.models.decoder import Decoder
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights, LayerWeights, Linear, Norm
from naiad.llm.models.operations import Operations, Stream
from naiad.llm.parallel.collectives import Collectives
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


class ShardedDecoder(Decoder):
    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        operations: Operations,
        collectives: Collectives,
        next_tokens: Tensor,
    ) -> None:
        """`config` is that of this rank's part, with the whole vocabulary."""
        super().__init__(config, weights, operations)
        self._collectives = collectives
        self._next_tokens = next_tokens
        self._tokens = collectives.shard.tokens(config)

    def run_layers(self, step: StepInput, cache: KvCache) -> Stream:
        stream = self._embed(step, cache)
        for index, layer in enumerate(self.weights.layers):
            stream = self._layer(stream, layer, index, step, cache)
        return stream

    def logits(self, stream: Stream, step: StepInput) -> Tensor:
        own = super().logits(stream, step)
        if own.shape[0] == 0:
            return own.new_empty((0, self.config.vocab_size))
        return self._collectives.gather_columns(own)[:, : self.config.vocab_size].contiguous()

    def _embed(self, step: StepInput, cache: KvCache) -> Stream:
        """Tokens of other ranks are zeros here, so that the sum is the embedding."""
        first, end = self._tokens
        known = step.token_ids
        ids = torch.where(known < 0, self._next_tokens[step.slots.long()], known)
        is_elsewhere = (ids < first) | (ids >= end)
        own = (ids - first).masked_fill_(is_elsewhere, 0).to(known.dtype)
        stream = self.operations.embed(
            replace(step, token_ids=own),
            self.weights.embedding,
            self.config.embedding_scale,
            cache,
        )
        stream.value.masked_fill_(is_elsewhere[:, None], 0)
        self._collectives.add(stream.value)
        return stream

    def _plain_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        ops = self.operations
        attended = self._attend(stream, layer, index, step, cache)
        stream = ops.add(self._summed(attended, layer.o), stream)
        return ops.add(self._mlp(stream, layer), stream)

    def _parallel_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        """Attention and MLP are added up before the sum over the ranks, which is one then."""
        ops, config = self.operations, self.config
        normed = ops.norm(stream, layer.input_norm)
        mlp_input = normed if layer.mlp_norm is None else ops.norm(stream, layer.mlp_norm)
        attended = ops.attend(
            ops.linear(normed, layer.qkv), layer, index, self._shapes[index], step, cache
        )
        inner = ops.activate(ops.linear(mlp_input, layer.up), config.activation, config.is_gated)
        both = ops.linear(attended, layer.o) + ops.linear(inner, layer.down)
        return ops.add(self._collectives.add(both), stream)

    def _post_norm_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        ops = self.operations
        attended = self._summed(self._attend(stream, layer, index, step, cache), layer.o)
        stream = ops.add(ops.norm_tensor(attended, _present(layer.post_attention_norm)), stream)
        inner = self._mlp(stream, layer)
        return ops.add(ops.norm_tensor(inner, _present(layer.post_mlp_norm)), stream)

    def _attend(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Tensor:
        qkv = self.operations.norm_linear(stream, layer.input_norm, layer.qkv)
        return self.operations.attend(qkv, layer, index, self._shapes[index], step, cache)

    def _mlp(self, stream: Stream, layer: LayerWeights) -> Tensor:
        config = self.config
        inner = self.operations.norm_activate(
            stream,
            _present(layer.mlp_norm),
            layer.up,
            config.activation,
            config.is_gated,
            layer.down,
        )
        return self._summed(inner, layer.down)

    def _summed(self, x: Tensor, linear: Linear) -> Tensor:
        return self._collectives.add(self.operations.linear(x, linear))


def _present(norm: Norm | None) -> Norm:
    assert norm is not None, "the family's config promises this norm"
    return norm
