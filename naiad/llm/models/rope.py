"""Rotary position embedding: a checkpoint's rope settings -> tables of cosines and sines, one row
per position.

In:  `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before) of config.json.
     Out: float32 tables.
Rule: frequencies are computed in float32 in transformers' order of operations, so that its logits
      are matched to the last bits.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from naiad.errors import unsupported


class RopeConfig(msgspec.Struct, frozen=True):
    rotary_dim: int
    theta: float = 10000.0
    kind: str = "default"
    settings: dict[str, Any] = {}
    """The scaling's own values, under transformers' names."""
    max_position_embeddings: int = 2048


def read_rope(
    raw: dict[str, Any], head_dim: int, partial_default: float = 1.0, theta_default: float = 10000.0
) -> RopeConfig:
    settings = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = settings.pop("rope_type", None) or settings.pop("type", None) or "default"
    theta = settings.pop("rope_theta", None) or raw.get("rope_theta") or theta_default
    partial = (
        settings.pop("partial_rotary_factor", None)
        or raw.get("partial_rotary_factor")
        or partial_default
    )
    if kind in ("su", "longrope"):  # Phi-3's early checkpoints say "su"
        kind = "longrope"
        settings.setdefault(
            "original_max_position_embeddings", raw.get("original_max_position_embeddings")
        )
    if kind not in _FREQUENCIES:
        raise unsupported(
            f"rope type '{kind}' of the checkpoint is not known, expected one of {', '.join(_FREQUENCIES)}"
        )
    return RopeConfig(
        int(head_dim * partial),
        float(theta),
        kind,
        settings,
        raw.get("max_position_embeddings", 2048),
    )


def rope_tables(
    rope: RopeConfig, max_model_len: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [max_model_len, rotary_dim / 2]."""
    frequencies, scale = _FREQUENCIES[rope.kind](rope, max_model_len)
    angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies[None, :]
    return (angles.cos() * scale).to(device), (angles.sin() * scale).to(device)


def _exponents(rope: RopeConfig) -> Tensor:
    return torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim


def _plain(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    return 1.0 / (rope.theta ** _exponents(rope)), 1.0


def _linear(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    return _plain(rope, max_model_len)[0] / rope.settings["factor"], 1.0


def _factors(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    """GGUF's way: each frequency divided by its own factor."""
    return _plain(rope, max_model_len)[0] / torch.tensor(
        rope.settings["factors"], dtype=torch.float32
    ), 1.0


def _dynamic(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    """The base grows with the longest sequence that the engine admits, so that cached keys stay
    valid."""
    factor, trained, dim = rope.settings["factor"], rope.max_position_embeddings, rope.rotary_dim
    longest = max(max_model_len, trained)
    base = rope.theta * ((factor * longest / trained) - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / (base ** _exponents(rope)), 1.0


def _llama3(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    plain, _ = _plain(rope, max_model_len)
    factor = rope.settings["factor"]
    low, high = rope.settings["low_freq_factor"], rope.settings["high_freq_factor"]
    trained = rope.settings["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    slowed = torch.where(wavelength > trained / low, plain / factor, plain)
    smooth = (trained / wavelength - low) / (high - low)
    blended = (1 - smooth) * slowed / factor + smooth * slowed
    is_medium = ~(wavelength < trained / high) & ~(wavelength > trained / low)
    return torch.where(is_medium, blended, slowed), 1.0


def _yarn(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    settings, dim, base = rope.settings, rope.rotary_dim, rope.theta
    trained = settings.get("original_max_position_embeddings") or rope.max_position_embeddings
    factor = settings.get("factor") or rope.max_position_embeddings / trained

    def magnitude(scale: float, weight: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    scale = settings.get("attention_factor")
    if scale is None:
        all_dim, weight = settings.get("mscale_all_dim"), settings.get("mscale")
        scale = (
            magnitude(factor, weight) / magnitude(factor, all_dim)
            if weight and all_dim
            else magnitude(factor)
        )

    def turning_dim(rotations: float) -> float:
        return (dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = (
        turning_dim(settings.get("beta_fast") or 32),
        turning_dim(settings.get("beta_slow") or 1),
    )
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = torch.clamp(
        (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 0.001), 0, 1
    )
    steps = base ** _exponents(rope)
    return 1.0 / (factor * steps) * ramp + 1.0 / steps * (1 - ramp), float(scale)


def _longrope(rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    """One set of factors for the engine's life, chosen by the longest sequence it admits, so that
    cached keys stay valid."""
    trained = rope.settings["original_max_position_embeddings"] or rope.max_position_embeddings
    factor = rope.settings.get("factor") or rope.max_position_embeddings / trained
    scale = rope.settings.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(trained))
    factors = torch.tensor(
        rope.settings["long_factor" if max_model_len > trained else "short_factor"],
        dtype=torch.float32,
    )
    return 1.0 / (factors * rope.theta ** _exponents(rope)), float(scale)


_FREQUENCIES = {
    "default": _plain,
    "linear": _linear,
    "factors": _factors,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
