"""Rotary position embedding: a checkpoint's rope settings -> the angle by which each pair of values
turns per position.

In:  `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before) of config.json.
     Out: float32 frequencies.
Rule: frequencies are computed in float32 in transformers' order of operations, so that its logits
      are matched to the last bits. This file does without torch, because the OpenVINO engine does.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from naiad.errors import unsupported

Floats = NDArray[np.float32]


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
            f"rope type '{kind}' of the checkpoint is not known, expected one of "
            f"{', '.join(_FREQUENCIES)}"
        )
    return RopeConfig(
        int(head_dim * partial),
        float(theta),
        kind,
        settings,
        raw.get("max_position_embeddings", 2048),
    )


def rope_frequencies(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    """Radians per position, [rotary_dim / 2], and a factor for the cosines and sines."""
    frequencies, scale = _FREQUENCIES[rope.kind](rope, max_model_len)
    return frequencies.astype(np.float32), scale


def _powers(base: float, rope: RopeConfig) -> Floats:
    """Rounded once, from float64: torch's own power of float32 is exact to the last bit almost
    everywhere."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    powers: Floats = (base ** exponents.astype(np.float64)).astype(np.float32)
    return powers


def _plain(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    return 1.0 / _powers(rope.theta, rope), 1.0


def _linear(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    return _plain(rope, max_model_len)[0] / np.float32(rope.settings["factor"]), 1.0


def _factors(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    """GGUF's way: each frequency divided by its own factor."""
    factors: Floats = np.array(rope.settings["factors"], np.float32)
    return _plain(rope, max_model_len)[0] / factors, 1.0


def _dynamic(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    """The base grows with the longest sequence that the engine admits, so that cached keys stay
    valid."""
    factor, trained, dim = rope.settings["factor"], rope.max_position_embeddings, rope.rotary_dim
    longest = max(max_model_len, trained)
    base = rope.theta * ((factor * longest / trained) - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / _powers(base, rope), 1.0


def _llama3(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    plain, _ = _plain(rope, max_model_len)
    factor = rope.settings["factor"]
    low, high = rope.settings["low_freq_factor"], rope.settings["high_freq_factor"]
    trained = rope.settings["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    slowed = np.where(wavelength > trained / low, plain / factor, plain)
    smooth = (trained / wavelength - low) / (high - low)
    blended = (1 - smooth) * slowed / factor + smooth * slowed
    is_medium = ~(wavelength < trained / high) & ~(wavelength > trained / low)
    return np.where(is_medium, blended, slowed), 1.0


def _yarn(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
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
    ramp = np.clip(
        (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low or 0.001),
        0,
        1,
    )
    steps = _powers(base, rope)
    return 1.0 / (factor * steps) * ramp + 1.0 / steps * (1 - ramp), float(scale)


def _longrope(rope: RopeConfig, max_model_len: int) -> tuple[Floats, float]:
    """One set of factors for the engine's life, chosen by the longest sequence it admits, so that
    cached keys stay valid."""
    trained = rope.settings["original_max_position_embeddings"] or rope.max_position_embeddings
    factor = rope.settings.get("factor") or rope.max_position_embeddings / trained
    scale = rope.settings.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(trained))
    factors = np.array(
        rope.settings["long_factor" if max_model_len > trained else "short_factor"], np.float32
    )
    return 1.0 / (factors * _powers(rope.theta, rope)), float(scale)


_FREQUENCIES = {
    "default": _plain,
    "linear": _linear,
    "factors": _factors,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
