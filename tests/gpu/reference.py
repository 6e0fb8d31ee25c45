"""float64 references for the kernels, written for clarity, and the error measure of the
comparison."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def relative_error(out: Tensor, reference: Tensor) -> float:
    assert torch.isfinite(out).all(), "not every element is a finite number"
    difference = (out.double() - reference.double()).norm()
    return float(difference / reference.double().norm().clamp_min(1e-12))


def poison(tensor: Tensor) -> Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x, which has the shape [tokens, heads, dim]."""
    half = cos.shape[1]
    x, cos, sin = x.double(), cos.double()[:, None], sin.double()[:, None]
    first, second = x[..., :half], x[..., half : 2 * half]
    return torch.cat(
        (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), dim=-1
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: int,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
) -> Tensor:
    """Computes attention. `query` is [count, heads, dim], for the positions from `start`; `key` and
    `value` are [kv heads, length, dim]."""
    group = query.shape[1] // key.shape[0]
    key, value = (
        key.double().repeat_interleave(group, 0),
        value.double().repeat_interleave(group, 0),
    )
    scores = torch.einsum("qhd,hkd->hqk", query.double(), key) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    distance = torch.arange(start, start + query.shape[0], device=query.device)[
        :, None
    ] - torch.arange(key.shape[1], device=query.device)
    is_seen = (distance >= 0) & (distance < window) if window else distance >= 0
    weights = torch.softmax(scores.masked_fill(~is_seen, float("-inf")), dim=-1)
    return torch.einsum("hqk,hkd->qhd", weights, value)
