"""Activation-aware weight quantization of one layer: scales for its inputs, searched, folded in,
and ranges that are cut, searched too.

In:  a layer of Llama's make, on the device, and what its matrices were given (`Samples`). Out: the
     layer, changed so that it computes the same and quantizes better. Rounding itself is
     round_integers'.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.llm.quantization.matrix import WeightKind
from naiad.llm.quantization.round_matrix import round_integers
from naiad.tools.quantize.samples import Samples

NUM_RATIOS = 20
CLIP_STEPS = 10
LEAST_RANGE = 0.5
MAX_CLIP_ROWS = 128
ROWS_AT_ONCE = 64
NOT_CUT = ("self_attn.q_proj", "self_attn.k_proj")
"""Their errors multiply in the attention's scores."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def scale_layer(layer: Any, samples: dict[str, Samples], group: int) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    _scale(
        layer.input_layernorm,
        [attention.q_proj, attention.k_proj, attention.v_proj],
        samples["self_attn.q_proj"],
        group,
    )
    if attention.v_proj.weight.shape[0] == attention.o_proj.weight.shape[1]:
        _scale(attention.v_proj, [attention.o_proj], samples["self_attn.o_proj"], group)
    _scale(
        layer.post_attention_layernorm,
        [mlp.gate_proj, mlp.up_proj],
        samples["mlp.gate_proj"],
        group,
    )
    _scale(mlp.up_proj, [mlp.down_proj], samples["mlp.down_proj"], group)


def _scale(before: Any, linears: list[Any], sample: Samples, group: int) -> None:
    """`before` is a norm, or the matrix whose outputs are the inputs of `linears`."""
    weights = [linear.weight.float() for linear in linears]
    rows = sample.rows.float()
    wanted = [rows @ weight.t() for weight in weights]
    x_mean, w_mean = sample.mean_abs.clamp_min(1e-8), _weight_means(weights, group)
    best, best_error = (
        None,
        sum(_error(rows, weight, out, group) for weight, out in zip(weights, wanted, strict=True)),
    )
    for step in range(1, NUM_RATIOS):
        ratio = step / NUM_RATIOS
        scales = (x_mean.pow(ratio) / w_mean.pow(1.0 - ratio)).clamp_min(1e-4)
        scales = scales / (scales.max() * scales.min()).sqrt()
        error = sum(
            _error(rows / scales, weight * scales, out, group)
            for weight, out in zip(weights, wanted, strict=True)
        )
        if error < best_error:
            best, best_error = scales, error
    if best is None:
        return
    for linear, weight in zip(linears, weights, strict=True):
        linear.weight.data.copy_(weight * best)
    if before.weight.dim() == 1:
        before.weight.data.copy_(before.weight.float() / best)
    else:
        before.weight.data.copy_(before.weight.float() / best[:, None])
        if before.bias is not None:
            before.bias.data.copy_(before.bias.float() / best)
    sample.divide(best)


def _error(rows: Tensor, weight: Tensor, wanted: Tensor, group: int) -> float:
    rounded = round_integers(weight, WeightKind.INT4, group, False).dequantize()
    return float((rows @ rounded.t() - wanted).pow(2).mean())


def _weight_means(weights: list[Tensor], group: int) -> Tensor:
    """How large each input's weights are compared with the largest of their group, on average over
    the outputs."""
    merged = torch.cat(weights)
    groups = merged.abs().view(merged.shape[0], -1, group)
    return (
        (groups / groups.amax(-1, keepdim=True).clamp_min(1e-8))
        .view_as(merged)
        .mean(0)
        .clamp_min(1e-8)
    )


def clip_layer(layer: Any, samples: dict[str, Samples], group: int) -> None:
    for name, sample in samples.items():
        if name not in NOT_CUT:
            linear = layer.get_submodule(name)
            linear.weight.data.copy_(clip(linear.weight.float(), sample.rows.float(), group))


def clip(weight: Tensor, rows: Tensor, group: int) -> Tensor:
    """Weights beyond a share of their group's largest are cut to it, where the product's error
    becomes smaller by that."""
    stride = max(1, rows.shape[0] // MAX_CLIP_ROWS)
    x = rows[::stride][:MAX_CLIP_ROWS].view(-1, weight.shape[1] // group, group)
    out = torch.empty_like(weight)
    for start in range(0, weight.shape[0], ROWS_AT_ONCE):
        part = weight[start : start + ROWS_AT_ONCE]
        groups = part.view(part.shape[0], -1, group)
        wanted = torch.einsum("tgk,ngk->ngt", x, groups)
        largest = groups.abs().amax(-1, keepdim=True)
        best_limit, best_error = largest.clone(), torch.full_like(largest[..., 0], float("inf"))
        for step in range(CLIP_STEPS):
            limit = largest * (1.0 - (1.0 - LEAST_RANGE) * step / CLIP_STEPS)
            cut = groups.clamp(-limit, limit)
            rounded = (
                round_integers(cut.reshape(part.shape), WeightKind.INT4, group, False)
                .dequantize()
                .view_as(groups)
            )
            error = (torch.einsum("tgk,ngk->ngt", x, rounded) - wanted).pow(2).mean(-1)
            is_better = error < best_error
            best_error = torch.where(is_better, error, best_error)
            best_limit = torch.where(is_better[..., None], limit, best_limit)
        out[start : start + ROWS_AT_ONCE] = groups.clamp(-best_limit, best_limit).reshape(
            part.shape
        )
    return out
