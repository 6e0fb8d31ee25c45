"""The tensors of a decoder, merged as the operations want them: q, k and v in one matrix, gate and
up in one matrix.

In:  a DecoderConfig gives the shapes. Out: filled by load_weights (a checkpoint) or by
     random_weights (benchmarks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from naiad.llm.models.decoder_config import DecoderConfig, NormKind


@dataclass(slots=True)
class Linear:
    weight: Tensor
    """[outputs, inputs], as checkpoints store it."""
    bias: Tensor | None = None


@dataclass(slots=True)
class Norm:
    kind: NormKind
    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass(slots=True)
class LayerWeights:
    qkv: Linear
    o: Linear
    up: Linear
    """gate rows, then up rows, where the MLP is gated."""
    down: Linear
    input_norm: Norm
    mlp_norm: Norm | None
    post_attention_norm: Norm | None
    post_mlp_norm: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None


LayerFinish = Callable[[LayerWeights], None]
"""Called with each layer as soon as it is there; may put other Linears into it."""
MATRICES = ("qkv", "o", "up", "down")


@dataclass(slots=True)
class DecoderWeights:
    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Norm
    head: Linear

    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in {id(t): t for t in _tensors(self)}.values())


def layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape, for one layer; the loader and the random weights both go by it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}
    _linear(shapes, "qkv", config.q_size + 2 * config.kv_size, hidden, config.has_qkv_bias)
    _linear(shapes, "o", hidden, config.q_size, config.has_o_bias)
    _linear(shapes, "up", inner * (2 if config.is_gated else 1), hidden, config.has_mlp_bias)
    _linear(shapes, "down", hidden, inner, config.has_mlp_bias)
    _norm(shapes, "input_norm", hidden, config.norm)
    if config.has_mlp_norm:
        _norm(shapes, "mlp_norm", hidden, config.norm)
    if config.has_post_norms:
        _norm(shapes, "post_attention_norm", hidden, config.norm)
        _norm(shapes, "post_mlp_norm", hidden, config.norm)
    if config.qk_norm is not None:
        _norm(shapes, "q_norm", config.head_dim, config.qk_norm)
        _norm(shapes, "k_norm", config.head_dim, config.qk_norm)
    return shapes


def outer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (config.vocab_size, config.hidden_size)
    }
    _norm(shapes, "final_norm", config.hidden_size, config.norm)
    if not config.tie_embeddings:
        shapes["head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def assemble(
    config: DecoderConfig,
    outer: dict[str, Tensor],
    layers: list[LayerWeights],
    head: Linear | None = None,
) -> DecoderWeights:
    """`head` is a quantized one, for which there is no tensor."""
    embedding = outer["embedding.weight"]
    plain = Linear(outer.get("head.weight", embedding), outer.get("head.bias"))
    return DecoderWeights(embedding, layers, _take_norm(config, outer, "final_norm"), head or plain)


def random_weights(
    config: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    finish: LayerFinish | None = None,
) -> DecoderWeights:
    """For benchmarks: the work of a real checkpoint without its bytes on disk."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {
            name: _draw(name, shape, device, dtype, generator) for name, shape in shapes.items()
        }

    outer = draw(outer_shapes(config))
    layers = []
    for _ in range(config.num_layers):
        layers.append(assemble_layer(config, draw(layer_shapes(config)), {}))
        if finish is not None:
            finish(layers[-1])
    return assemble(config, outer, layers)


def _draw(
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    tensor = torch.empty(shape, device=device, dtype=dtype)
    if "norm" in name and name.endswith(".weight"):
        return tensor.uniform_(0.5, 1.5, generator=generator)
    return tensor.normal_(0.0, 0.02, generator=generator)


def assemble_layer(
    config: DecoderConfig, tensors: dict[str, Tensor], linears: dict[str, Linear]
) -> LayerWeights:
    """`linears` are the quantized ones, for which there are no tensors."""

    def linear(name: str) -> Linear:
        return (
            linears[name]
            if name in linears
            else Linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
        )

    def norm(name: str, kind: NormKind | None = None) -> Norm | None:
        return _take_norm(config, tensors, name, kind) if f"{name}.weight" in tensors else None

    return LayerWeights(
        qkv=linear("qkv"),
        o=linear("o"),
        up=linear("up"),
        down=linear("down"),
        input_norm=_take_norm(config, tensors, "input_norm"),
        mlp_norm=norm("mlp_norm"),
        post_attention_norm=norm("post_attention_norm"),
        post_mlp_norm=norm("post_mlp_norm"),
        q_norm=norm("q_norm", config.qk_norm),
        k_norm=norm("k_norm", config.qk_norm),
    )


def _take_norm(
    config: DecoderConfig, tensors: dict[str, Tensor], name: str, kind: NormKind | None = None
) -> Norm:
    weight = tensors[f"{name}.weight"]
    if config.norm_offset:
        weight = weight.float() + config.norm_offset
    return Norm(kind or config.norm, weight, tensors.get(f"{name}.bias"), config.norm_eps)


def _linear(
    shapes: dict[str, tuple[int, ...]], name: str, outputs: int, inputs: int, has_bias: bool
) -> None:
    shapes[f"{name}.weight"] = (outputs, inputs)
    if has_bias:
        shapes[f"{name}.bias"] = (outputs,)


def _norm(shapes: dict[str, tuple[int, ...]], name: str, size: int, kind: NormKind) -> None:
    shapes[f"{name}.weight"] = (size,)
    if kind is NormKind.LAYER:
        shapes[f"{name}.bias"] = (size,)


def _tensors(weights: DecoderWeights) -> list[Tensor]:
    found = [weights.embedding, weights.head.weight, weights.final_norm.weight]
    for layer in weights.layers:
        found += [layer.qkv.weight, layer.o.weight, layer.up.weight, layer.down.weight]
    return found
