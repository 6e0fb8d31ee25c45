"""The decoder's operations on CUDA. How a matrix is multiplied is its kind's own matter
(`Products`): dense_products.py for 16-bit matrices, fp8_products.py, byte_products.py and
int4_products.py for quantized ones, each with kernels by number of rows. What a family needs and
has no kernel (layer norms, GELU) is PyTorch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.llm.kernels.activation import silu_mul
from naiad.llm.kernels.byte_products import ByteProducts
from naiad.llm.kernels.dense_products import DenseProducts
from naiad.llm.kernels.embedding import embed
from naiad.llm.kernels.fp8_products import Fp8Products
from naiad.llm.kernels.gemm_plan import GemmPlan
from naiad.llm.kernels.int4_products import Int4Products
from naiad.llm.kernels.norm import rms_norm
from naiad.llm.kernels.paged_attention import TritonPagedAttention
from naiad.llm.kernels.parted_products import PartedProducts
from naiad.llm.kernels.products import Products, norm_rows, settled
from naiad.llm.kernels.rope_store import rope_store
from naiad.llm.kernels.rows import Rows
from naiad.llm.models.decoder_config import Activation, NormKind
from naiad.llm.models.decoder_weights import LayerWeights, Linear, Norm
from naiad.llm.models.operations import AttentionShape, Stream
from naiad.llm.models.quantized_linear import ByteLinear, Fp8Linear, Int4Linear, PartedLinear
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
        dtype: torch.dtype,
    ) -> None:
        self.cos = cos
        self.sin = sin
        self.next_tokens = next_tokens
        self.attention = attention
        self.dtype = dtype
        self._products: dict[type[Linear], Products] = {
            Linear: DenseProducts(plan),
            Fp8Linear: Fp8Products(plan.num_sms, dtype),
            ByteLinear: ByteProducts(),
            Int4Linear: Int4Products(dtype),
            PartedLinear: PartedProducts(self._of),
        }

    def embed(self, step: StepInput, table: Tensor, scale: float, cache: KvCache) -> Stream:
        return Stream(embed(step.token_ids, step.slots, self.next_tokens, table, scale))

    def norm(self, stream: Stream, norm: Norm) -> Tensor:
        return (
            apply_norm(settled(stream), norm)
            if norm.kind is NormKind.LAYER
            else norm_rows(stream, norm)
        )

    def norm_tensor(self, x: Tensor, norm: Norm) -> Tensor:
        return (
            rms_norm(x, norm.weight, norm.eps) if norm.kind is NormKind.RMS else apply_norm(x, norm)
        )

    def linear(self, x: Any, linear: Linear) -> Tensor:
        return self._of(linear).multiply(x, linear, False)

    def linear_add(self, x: Any, linear: Linear, stream: Stream) -> Stream:
        value = settled(stream)
        products = self._of(linear)
        if x.shape[0] == 1:
            total = products.add_one(x, linear, value)
            if total is not None:
                return Stream(total)
        return products.multiply_add(x, linear, value)

    def add(self, x: Tensor, stream: Stream) -> Stream:
        return Stream(settled(stream) + x)

    def norm_linear(self, stream: Stream, norm: Norm, linear: Linear) -> Tensor:
        products = self._of(linear)
        if self._is_single(stream, norm):
            product = products.norm_one(stream, norm, linear, False)
            if product is not None:
                return product
        return products.multiply(self._normed(stream, norm, linear), linear, True)

    def activate(self, x: Tensor, activation: Activation, is_gated: bool) -> Tensor:
        if activation is Activation.SILU and is_gated:
            return silu_mul(x, x.dtype)
        return apply_activation(x, activation, is_gated)

    def norm_activate(
        self,
        stream: Stream,
        norm: Norm,
        up: Linear,
        activation: Activation,
        is_gated: bool,
        reader: Linear,
    ) -> Rows:
        products = self._of(up)
        is_silu = activation is Activation.SILU and is_gated
        if is_silu and up.bias is None and self._is_single(stream, norm):
            inner = products.norm_one(stream, norm, up, True)
            if inner is not None:
                return inner
        product = products.multiply(self._normed(stream, norm, up), up, is_silu and up.bias is None)
        if is_silu:
            return self._of(reader).silu_mul(product, reader, self.dtype)
        return apply_activation(product, activation, is_gated)

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
            qkv, layer.qkv.bias if is_split else None, cache.keys[index], cache.values[index],
            self.cos, self.sin, step.positions,
            step.slots, cache.block_tables, q_norm.weight if q_norm else None,
            k_norm.weight if k_norm else None, eps, shape.num_heads, self.dtype,
            cache.scales[index],
        )  # fmt: skip
        return self.attention.attend(query, index, shape, step, cache)

    def logits(
        self, stream: Stream, norm: Norm, head: Linear, step: StepInput, softcap: float
    ) -> Tensor:
        if norm.kind is NormKind.LAYER:
            rows = settled(stream)
            normed = apply_norm(
                rows if step.sample_rows is None else rows[step.sample_rows.long()], norm
            )
        else:
            normed = rms_norm(
                stream.value, norm.weight, norm.eps, stream.partials, stream.bias, step.sample_rows
            )
        logits = self.linear(normed, head)
        return torch.tanh(logits.float() / softcap) * softcap if softcap else logits

    def _of(self, linear: Linear) -> Products:
        return self._products[type(linear)]

    def _is_single(self, stream: Stream, norm: Norm) -> bool:
        return stream.value.shape[0] == 1 and norm.kind is NormKind.RMS and stream.partials is None

    def _normed(self, stream: Stream, norm: Norm, linear: Linear) -> Rows:
        if norm.kind is NormKind.LAYER:
            return apply_norm(settled(stream), norm)
        return self._of(linear).norm(stream, norm, linear)

    def _norm_heads(self, qkv: Tensor, layer: LayerWeights, shape: AttentionShape) -> Tensor:
        """Layer-normed queries and keys, a head at a time."""
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        if qkv.dim() == 3:
            qkv = qkv.sum(0).to(self.dtype)
            if layer.qkv.bias is not None:
                qkv = qkv + layer.qkv.bias
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        query, key, value = heads.split(
            [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1
        )
        return torch.cat(
            (apply_norm(query, layer.q_norm), apply_norm(key, layer.k_norm), value), dim=1
        ).flatten(1)
