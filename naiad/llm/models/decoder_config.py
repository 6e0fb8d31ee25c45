"""The values in which decoder families differ. A family's `read_config` builds them."""

from __future__ import annotations

import enum

import msgspec

from naiad.llm.models.rope import RopeConfig


class NormKind(enum.StrEnum):
    RMS = "rms"
    LAYER = "layer"


class Activation(enum.StrEnum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU2 = "relu2"


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: RopeConfig
    norm: NormKind = NormKind.RMS
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    """Added to norm weights: Gemma stores them around 0."""
    qk_norm: NormKind | None = None
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    activation: Activation = Activation.SILU
    is_gated: bool = True
    """True if the MLP has two up projections, of which one goes through the activation and is
    multiplied with the other."""
    is_parallel: bool = False
    """True if attention and MLP read the same stream and are added together (Falcon)."""
    has_mlp_norm: bool = True
    """False if a parallel layer has one norm for both."""
    has_post_norms: bool = False
    """True if the outputs of attention and MLP are normalized before they are added (Gemma 2)."""
    attention_scale: float
    attention_softcap: float = 0.0
    """0 means none."""
    logits_softcap: float = 0.0
    sliding_windows: list[int] = []
    """Window per layer, 0 for none; an empty list means no layer has one."""
    embedding_scale: float = 1.0
    tie_embeddings: bool = False
    eos_token_ids: list[int] = []
    bos_token_id: int | None = None
    dtype: str = "bfloat16"

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int:
        return self.sliding_windows[layer] if self.sliding_windows else 0

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.num_layers * self.kv_size * element_bytes
