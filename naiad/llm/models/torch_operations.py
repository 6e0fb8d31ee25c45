"""The operations in plain PyTorch: the CPU path, and the reference that the CUDA kernels are
checked against."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.models.decoder_config import Activation, NormKind
from naiad.llm.models.decoder_weights import LayerWeights, Linear, Norm
from naiad.llm.models.operations import AttentionShape, Stream
from naiad.llm.models.packed_linear import apply_linear, apply_linear_add
from naiad.llm.models.paged_attention import PagedLayer
from naiad.llm.models.step_layout import StepLayout
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


def apply_norm(x: Tensor, norm: Norm) -> Tensor:
    if norm.kind is NormKind.LAYER:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.weight.dtype == x.dtype:
        return norm.weight * wide.to(x.dtype)
    return (norm.weight * wide).to(x.dtype)


@functools.cache
def _number(value: float) -> Tensor:
    return torch.tensor(value, device="cpu")


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


class Rotation:
    """The angles of a step's tokens, laid out so that the halves of a head turn in three
    operations."""

    def __init__(self, cos: Tensor, sin: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
        self._half = cos.shape[1]
        cos, sin = cos[positions], sin[positions]
        self._cos = torch.stack((cos, cos), dim=1)[:, None].to(dtype)
        self._sin = torch.stack((-sin, sin), dim=1)[:, None].to(dtype)

    def turn(self, x: Tensor) -> None:
        """x [tokens, heads, head_dim]; the first 2 * half values of each head turn, in two halves,
        where they are."""
        width = 2 * self._half
        halves = x[..., :width].view(x.shape[0], x.shape[1], 2, self._half)
        crossed = halves.flip(2)
        halves.mul_(self._cos).addcmul_(crossed, self._sin)


class TorchOperations:
    def __init__(self, cos: Tensor, sin: Tensor, next_tokens: Tensor) -> None:
        self.cos = cos
        self.sin = sin
        self.next_tokens = next_tokens
        self._layout: StepLayout | None = None
        self._rotation: Rotation | None = None
        self._pages: list[PagedLayer] = []

    def embed(self, step: StepInput, table: Tensor, scale: float, cache: KvCache) -> Stream:
        tokens = torch.where(
            step.token_ids < 0, self.next_tokens[step.slots.long()], step.token_ids
        )
        embedded = F.embedding(tokens.long(), table)
        return Stream(
            embedded if scale == 1.0 else embedded * torch.tensor(scale, dtype=embedded.dtype)
        )

    def norm(self, stream: Stream, norm: Norm) -> Tensor:
        return self.norm_tensor(stream.value, norm)

    def norm_tensor(self, x: Tensor, norm: Norm) -> Tensor:
        """As apply_norm, in fewer calls."""
        if norm.kind is not NormKind.RMS or x.dtype != norm.weight.dtype:
            return apply_norm(x, norm)
        if x.dtype == torch.float32 and not x.is_cpu:
            return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
        if x.dtype == torch.float32:
            # In five operations; torch's rms_norm takes eight on a CPU.
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scale = torch.addcmul(_number(norm.eps), length, length, value=1 / x.shape[-1]).rsqrt_()
            return (x * scale).mul_(norm.weight)
        return F.rms_norm(x, norm.weight.shape, None, norm.eps).mul_(norm.weight)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return apply_linear(x, linear)

    def linear_add(self, x: Tensor, linear: Linear, stream: Stream) -> Stream:
        return Stream(apply_linear_add(x, linear, stream.value))

    def add(self, x: Tensor, stream: Stream) -> Stream:
        return Stream(stream.value + x)

    def norm_linear(self, stream: Stream, norm: Norm, linear: Linear) -> Tensor:
        return apply_linear(self.norm_tensor(stream.value, norm), linear)

    def activate(self, x: Tensor, activation: Activation, is_gated: bool) -> Tensor:
        return apply_activation(x, activation, is_gated)

    def norm_activate(
        self,
        stream: Stream,
        norm: Norm,
        up: Linear,
        activation: Activation,
        is_gated: bool,
        reader: Linear,
    ) -> Tensor:
        return apply_activation(self.norm_linear(stream, norm, up), activation, is_gated)

    def attend(
        self,
        qkv: Tensor,
        layer: LayerWeights,
        index: int,
        shape: AttentionShape,
        step: StepInput,
        cache: KvCache,
    ) -> Tensor:
        """`qkv` is the step's own: queries and keys are turned where they are."""
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        num_turned = shape.num_heads + shape.num_kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = heads[:, : shape.num_heads], heads[:, shape.num_heads : num_turned]
            query.copy_(self.norm_tensor(query, layer.q_norm))
            key.copy_(self.norm_tensor(key, layer.k_norm))
        layout = self._lay_out(step, cache)
        if self._rotation is None:
            self._rotation = Rotation(self.cos, self.sin, layout.positions, qkv.dtype)
        self._rotation.turn(heads[:, :num_turned])
        return self._pages[index].attend(
            heads[:, : shape.num_heads], heads[:, shape.num_heads :], shape, layout
        )

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
        """For models that rotate on their own: [tokens, heads, head_dim] each."""
        layout = self._lay_out(step, cache)
        return self._pages[index].attend(query, torch.cat((key, value), dim=1), shape, layout)

    def logits(
        self, stream: Stream, norm: Norm, head: Linear, step: StepInput, softcap: float
    ) -> Tensor:
        rows = stream.value if step.sample_rows is None else stream.value[step.sample_rows.long()]
        logits = apply_linear(self.norm_tensor(rows, norm), head)
        return torch.tanh(logits / softcap) * softcap if softcap else logits

    def _lay_out(self, step: StepInput, cache: KvCache) -> StepLayout:
        if self._layout is None or self._layout.step is not step:
            self._layout, self._rotation = StepLayout(step, cache), None
            if not self._pages:
                self._pages = [PagedLayer(pair) for pair in cache.pairs]
        return self._layout
