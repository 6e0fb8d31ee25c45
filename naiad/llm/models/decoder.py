"""The one decoder: a stack of attention and MLP over a residual stream, arranged as the family's
config says.

In:  a StepInput. Out: logits of the rows that are sampled.
Rule: no device, no shapes and no kernels here; those are the operations'. What reads as a layer is
      a layer.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights, LayerWeights, Norm
from naiad.llm.models.operations import AttentionShape, Operations, Stream
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


class Decoder:
    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, operations: Operations
    ) -> None:
        self.config = config
        self.weights = weights
        self.operations = operations
        self._shapes = [_attention_shape(config, layer) for layer in range(config.num_layers)]
        self._layer = self._choose_layer()

    def forward(self, step: StepInput, cache: KvCache) -> Tensor:
        return self.logits(self.run_layers(step, cache), step)

    def run_layers(self, step: StepInput, cache: KvCache) -> Stream:
        stream = self.operations.embed(
            step, self.weights.embedding, self.config.embedding_scale, cache
        )
        for index, layer in enumerate(self.weights.layers):
            stream = self._layer(stream, layer, index, step, cache)
        return stream

    def logits(self, stream: Stream, step: StepInput) -> Tensor:
        return self.operations.logits(
            stream, self.weights.final_norm, self.weights.head, step, self.config.logits_softcap
        )

    def _choose_layer(self) -> Callable[[Stream, LayerWeights, int, StepInput, KvCache], Stream]:
        if self.config.is_parallel:
            return self._parallel_layer
        return self._post_norm_layer if self.config.has_post_norms else self._plain_layer

    def _plain_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        ops, config = self.operations, self.config
        qkv = ops.norm_linear(stream, layer.input_norm, layer.qkv)
        attended = ops.attend(qkv, layer, index, self._shapes[index], step, cache)
        stream = ops.linear_add(attended, layer.o, stream)
        inner = ops.norm_activate(
            stream,
            _present(layer.mlp_norm),
            layer.up,
            config.activation,
            config.is_gated,
            layer.down,
        )
        return ops.linear_add(inner, layer.down, stream)

    def _parallel_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        ops, config = self.operations, self.config
        normed = ops.norm(stream, layer.input_norm)
        mlp_input = normed if layer.mlp_norm is None else ops.norm(stream, layer.mlp_norm)
        attended = ops.attend(
            ops.linear(normed, layer.qkv), layer, index, self._shapes[index], step, cache
        )
        inner = ops.activate(ops.linear(mlp_input, layer.up), config.activation, config.is_gated)
        stream = ops.linear_add(attended, layer.o, stream)
        return ops.linear_add(inner, layer.down, stream)

    def _post_norm_layer(
        self, stream: Stream, layer: LayerWeights, index: int, step: StepInput, cache: KvCache
    ) -> Stream:
        ops, config = self.operations, self.config
        qkv = ops.norm_linear(stream, layer.input_norm, layer.qkv)
        attended = ops.linear(
            ops.attend(qkv, layer, index, self._shapes[index], step, cache), layer.o
        )
        stream = ops.add(ops.norm_tensor(attended, _present(layer.post_attention_norm)), stream)
        inner = ops.norm_activate(
            stream,
            _present(layer.mlp_norm),
            layer.up,
            config.activation,
            config.is_gated,
            layer.down,
        )
        return ops.add(
            ops.norm_tensor(ops.linear(inner, layer.down), _present(layer.post_mlp_norm)), stream
        )


def _attention_shape(config: DecoderConfig, layer: int) -> AttentionShape:
    return AttentionShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rope.rotary_dim,
        scale=config.attention_scale,
        softcap=config.attention_softcap,
        window=config.window(layer),
    )


def _present(norm: Norm | None) -> Norm:
    assert norm is not None, "the family's config promises this norm"
    return norm
