"""Calibrates the scales of an fp8 KV cache: the largest key and value of each layer.

Keys are stored rotated, and a rotation keeps the length of each pair of numbers. So the longest
pair before the rotation bounds every key after it, at any position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg

FP8_MAX = 448.0


class KvRange:
    def __init__(self, layer: Any, name: str, config: Any) -> None:
        """`name` is the layer's, for messages."""
        self._attention = layer.self_attn
        self._name = name
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.key = 0.0
        self.value = 0.0

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observes the keys and values that the layer computes meanwhile."""
        attention = self._attention
        if hasattr(attention, "qkv_proj"):
            hooks = [attention.qkv_proj.register_forward_hook(self._on_joined)]
        else:
            # Norms of keys come between the projection and the rotation.
            keys = getattr(attention, "k_norm", None) or attention.k_proj
            hooks = [
                keys.register_forward_hook(lambda _, __, out: self._add_keys(out)),
                attention.v_proj.register_forward_hook(lambda _, __, out: self._add_values(out)),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def scales(self) -> dict[str, Tensor]:
        """Returns the tensors of a checkpoint, by name below the layer."""
        for kind, largest in (("keys", self.key), ("values", self.value)):
            if not 0.0 < largest < float("inf"):
                raise invalid_arg(
                    f"calibration gave '{self._name}' {kind} up to {largest:g}, expected finite "
                    "numbers above 0: try another calib_dataset"
                )
        return {
            "self_attn.k_scale": torch.tensor([self.key / FP8_MAX]),
            "self_attn.v_scale": torch.tensor([self.value / FP8_MAX]),
        }

    def _on_joined(self, _: Any, __: Any, out: Tensor) -> None:
        num_queries = self._num_heads * self._head_dim
        num_keys = self._num_kv_heads * self._head_dim
        _, keys, values = out.split([num_queries, num_keys, num_keys], dim=-1)
        self._add_keys(keys)
        self._add_values(values)

    def _add_keys(self, out: Tensor) -> None:
        first, second = out.float().reshape(-1, self._head_dim).chunk(2, dim=1)
        self.key = _larger(self.key, torch.hypot(first, second))

    def _add_values(self, out: Tensor) -> None:
        self.value = _larger(self.value, out.float().abs())


def _larger(known: float, found: Tensor) -> float:
    """Returns NaN if one of them is not a number, which `max` would lose."""
    largest = float(found.amax())
    return largest if largest != largest or largest > known else known
