"""The sizes of a model that an engine needs to plan memory, whichever code computes the model."""

from __future__ import annotations

import msgspec

from naiad.llm.models.decoder_config import DecoderConfig


class KvShape(msgspec.Struct, frozen=True):
    """One layer's keys (and values): heads, and values per head."""

    num_kv_heads: int
    head_dim: int


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    vocab_size: int
    max_position_embeddings: int
    kv_shapes: list[KvShape]
    """Per layer."""
    activation_width: int
    """Values per token that the largest layer keeps at once."""
    is_captured: bool = False
    """True if its steps may be captured in CUDA graphs."""
    has_wide_logits: bool = False
    """True if the logits are float32 even if the weights are not."""

    def kv_values_per_token(self) -> int:
        return sum(2 * shape.num_kv_heads * shape.head_dim for shape in self.kv_shapes)


def describe(config: DecoderConfig) -> ModelDescription:
    width = (
        2 * config.q_size
        + 2 * config.kv_size
        + 3 * config.hidden_size
        + config.intermediate_size * (3 if config.is_gated else 2)
    )
    return ModelDescription(
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        kv_shapes=[KvShape(config.num_kv_heads, config.head_dim)] * config.num_layers,
        activation_width=width,
        is_captured=True,
        has_wide_logits=bool(config.logits_softcap),
    )
