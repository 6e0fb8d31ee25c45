"""What a decoder needs done with tensors. Two implementations: TorchOperations (any device) and
TritonOperations (CUDA).

The residual stream travels as a `Stream`, so that an implementation may leave the last addition to
whoever reads it next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from naiad.llm.models.decoder_config import Activation
from naiad.llm.models.decoder_weights import LayerWeights, Linear, Norm
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


@dataclass(slots=True)
class Stream:
    value: Tensor
    """[tokens, hidden]."""
    partials: Tensor | None = None
    """float32 [parts, tokens, hidden], still to be added."""
    bias: Tensor | None = None
    """Belongs to the partials."""


@dataclass(slots=True, frozen=True)
class AttentionShape:
    """What is the same for all tokens of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    scale: float
    softcap: float
    window: int


class Operations(Protocol):
    def embed(self, step: StepInput, table: Tensor, scale: float, cache: KvCache) -> Stream: ...

    def norm(self, stream: Stream, norm: Norm) -> Tensor:
        """Adds what the stream still owes before it reads it."""

    def norm_tensor(self, x: Tensor, norm: Norm) -> Tensor: ...

    def linear(self, x: Any, linear: Linear) -> Tensor:
        """`x` is a tensor, or what `norm_activate` left for this very matrix."""

    def linear_add(self, x: Any, linear: Linear, stream: Stream) -> Stream: ...

    def add(self, x: Tensor, stream: Stream) -> Stream: ...

    def norm_linear(self, stream: Stream, norm: Norm, linear: Linear) -> Tensor:
        """May be left unsummed, as [parts, tokens, outputs]; `attend` sums."""

    def activate(self, x: Tensor, activation: Activation, is_gated: bool) -> Tensor: ...

    def norm_activate(
        self,
        stream: Stream,
        norm: Norm,
        up: Linear,
        activation: Activation,
        is_gated: bool,
        reader: Linear,
    ) -> Any:
        """Rows in the form that `reader`, the next matrix, multiplies fastest."""

    def attend(
        self,
        qkv: Tensor,
        layer: LayerWeights,
        index: int,
        shape: AttentionShape,
        step: StepInput,
        cache: KvCache,
    ) -> Tensor:
        """Rotates queries and keys, stores keys and values, attends. [tokens, num_heads *
        head_dim]."""

    def logits(
        self, stream: Stream, norm: Norm, head: Linear, step: StepInput, softcap: float
    ) -> Tensor:
        """[sampled rows, vocabulary]."""
