"""Defines a precision: how a language model's weights and its KV cache are stored, and what that
changes about the model."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

QUANTIZATION = "quantization"
KV_CACHE = "kv_cache_dtype"
PLAIN = "auto"


class Precision(msgspec.Struct, frozen=True):
    quantization: str = PLAIN
    kv_cache_dtype: str = PLAIN

    @property
    def text(self) -> str:
        cache = "" if self.kv_cache_dtype == PLAIN else f" with an {self.kv_cache_dtype} KV cache"
        return ("unquantized" if self.quantization == PLAIN else self.quantization) + cache


class PrecisionOutcome(msgspec.Struct, frozen=True):
    model: str
    precision: Precision
    figures: dict[str, float] = {}
    reason: str = ""
    """Why the device cannot serve it; empty if it can."""


def read_precision(parameters: Mapping[str, str]) -> Precision:
    """Returns the precision that the parameters of a model ask for."""
    return Precision(parameters.get(QUANTIZATION, PLAIN), parameters.get(KV_CACHE, PLAIN))
