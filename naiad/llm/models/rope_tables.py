"""Cosines and sines of the rotary embedding, one row per position, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.models.rope import RopeConfig, rope_frequencies


def rope_tables(
    rope: RopeConfig, max_model_len: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Each [max_model_len, rotary_dim / 2], float32."""
    frequencies, scale = rope_frequencies(rope, max_model_len)
    angles = (
        torch.arange(max_model_len, dtype=torch.float32)[:, None]
        * torch.from_numpy(frequencies)[None, :]
    )
    return (angles.cos() * scale).to(device), (angles.sin() * scale).to(device)
