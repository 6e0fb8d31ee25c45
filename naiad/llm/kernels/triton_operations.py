"""The decoder's operations on CUDA. Which kernel computes a product depends on the number of rows:

one row      gemv, with norm, activation and residual folded in a few rows   skinny_gemm in float32
parts, summed by the kernel that reads them (gemm_plan.py says where that wins) more         cuBLAS,
the residual added in its epilogue What a family needs and has no kernel (layer norms, GELU) is
PyTorch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kernels.activation import silu_mul
from naiad.llm.kernels.embedding import embed
from naiad.llm.kernels.gemm_plan import GemmPlan
from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.norm import rms_norm
from naiad.llm.kernels.paged_attention import TritonPagedAttention
from naiad.llm.kernels.rope_store import rope_store
from naiad.llm.kernels.skinny_gemm import skinny_gemm
from naiad.llm.models.decoder_config import Activation, NormKind
from naiad.llm.models.decoder_weights import LayerWeights, Linear, Norm
from naiad.llm.models.operations import AttentionShape, Stream
from naiad.llm.models.torch_operations import apply_activation, apply_norm
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput


class TritonOperations:
    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        next_tokens: Tensor,
        attention: TritonPagedAttention,
        plan: GemmPlan,
    ) -> None:
        self.cos = cos
        self.sin = sin
        self.next_tokens = next_tokens
        self.attention = attention
        self.plan = plan

    def embed(self, step: StepInput, table: Tensor, scale: float, cache: KvCache) -> Stream:
        return Stream(embed(step.token_ids, step.slots, self.next_tokens, table, scale))

    def norm(self, stream: Stream, norm: Norm) -> Tensor:
        if norm.kind is NormKind.LAYER:
            return apply_norm(self._settled(stream), norm)
        normed = rms_norm(stream.value, norm.weight, norm.eps, stream.partials, stream.bias)
        stream.partials = stream.bias = None
        return normed

    def norm_tensor(self, x: Tensor, norm: Norm) -> Tensor:
        return (
            rms_norm(x, norm.weight, norm.eps) if norm.kind is NormKind.RMS else apply_norm(x, norm)
        )

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        if x.shape[0] == 1 and self.plan.uses_gemv(linear.weight):
            return gemv(x, linear.weight, bias=linear.bias)
        return F.linear(x, linear.weight, linear.bias)

    def linear_add(self, x: Tensor, linear: Linear, stream: Stream) -> Stream:
        if x.shape[0] == 1 and self.plan.uses_gemv(linear.weight):
            return Stream(gemv(x, linear.weight, bias=linear.bias, residual=self._settled(stream)))
        choice = self.plan.skinny_add(x, linear.weight)
        if choice is not None:
            return Stream(
                self._settled(stream), skinny_gemm(x, linear.weight, *choice), linear.bias
            )
        value = self._settled(stream)
        if linear.bias is not None:
            value += linear.bias
        return Stream(value.addmm_(x, linear.weight.t()))

    def add(self, x: Tensor, stream: Stream) -> Stream:
        return Stream(self._settled(stream) + x)

    def norm_linear(self, stream: Stream, norm: Norm, linear: Linear) -> Tensor:
        if self._is_single(stream, norm, linear):
            return gemv(stream.value, linear.weight, norm.weight, norm.eps, linear.bias)
        normed = self.norm(stream, norm)
        choice = self.plan.skinny(normed, linear.weight)
        return (
            self.linear(normed, linear)
            if choice is None
            else skinny_gemm(normed, linear.weight, *choice)
        )

    def activate(self, x: Tensor, activation: Activation, is_gated: bool) -> Tensor:
        if activation is Activation.SILU and is_gated:
            return silu_mul(x, x.dtype)
        return apply_activation(x, activation, is_gated)

    def norm_activate(
        self, stream: Stream, norm: Norm, up: Linear, activation: Activation, is_gated: bool
    ) -> Tensor:
        is_plain = activation is Activation.SILU and is_gated and up.bias is None
        if is_plain and self._is_single(stream, norm, up):
            return gemv(stream.value, up.weight, norm.weight, norm.eps, is_gated=True)
        normed = self.norm(stream, norm)
        choice = self.plan.skinny(normed, up.weight) if is_plain else None
        if choice is not None:
            return silu_mul(skinny_gemm(normed, up.weight, *choice), normed.dtype)
        return self.activate(self.linear(normed, up), activation, is_gated)

    def attend(
        self,
        qkv: Tensor,
        layer: LayerWeights,
        index: int,
        shape: AttentionShape,
        step: StepInput,
        cache: KvCache,
    ) -> Tensor:
        q_norm, k_norm = layer.q_norm, layer.k_norm
        is_split = qkv.dim() == 3
        if q_norm is not None and k_norm is not None and q_norm.kind is NormKind.LAYER:
            qkv, is_split, q_norm, k_norm = self._norm_heads(qkv, layer, shape), False, None, None
        eps = q_norm.eps if q_norm else 0.0
        query = rope_store(
            qkv, layer.qkv.bias if is_split else None, cache.keys[index], cache.values[index], self.cos, self.sin, step.positions,
            step.slots, cache.block_tables, q_norm.weight if q_norm else None, k_norm.weight if k_norm else None, eps, shape.num_heads,
        )  # fmt: skip
        return self.attention.attend(query, index, shape, step, cache)

    def logits(
        self, stream: Stream, norm: Norm, head: Linear, step: StepInput, softcap: float
    ) -> Tensor:
        if norm.kind is NormKind.LAYER:
            rows = self._settled(stream)
            normed = apply_norm(
                rows if step.sample_rows is None else rows[step.sample_rows.long()], norm
            )
        else:
            normed = rms_norm(
                stream.value, norm.weight, norm.eps, stream.partials, stream.bias, step.sample_rows
            )
        logits = self.linear(normed, head)
        return torch.tanh(logits.float() / softcap) * softcap if softcap else logits

    def _is_single(self, stream: Stream, norm: Norm, linear: Linear) -> bool:
        return (
            stream.value.shape[0] == 1
            and norm.kind is NormKind.RMS
            and stream.partials is None
            and self.plan.uses_gemv(linear.weight)
        )

    def _settled(self, stream: Stream) -> Tensor:
        """The stream with all that it owes added; rare outside of `norm`, which does it on the
        way."""
        if stream.partials is not None:
            stream.value = (stream.value.float() + stream.partials.sum(0)).to(stream.value.dtype)
            if stream.bias is not None:
                stream.value = stream.value + stream.bias
            stream.partials = stream.bias = None
        return stream.value

    def _norm_heads(self, qkv: Tensor, layer: LayerWeights, shape: AttentionShape) -> Tensor:
        """Layer-normed queries and keys, a head at a time."""
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        if qkv.dim() == 3:
            qkv = qkv.sum(0).to(layer.o.weight.dtype)
            if layer.qkv.bias is not None:
                qkv = qkv + layer.qkv.bias
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        query, key, value = heads.split(
            [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1
        )
        return torch.cat(
            (apply_norm(query, layer.q_norm), apply_norm(key, layer.k_norm), value), dim=1
        ).flatten(1)
