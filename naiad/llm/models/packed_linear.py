"""Matrices as libraries want them for the few rows of a decode step, on a CPU: half the time of
plain BLAS, or a quarter.

In:  DecoderWeights as they were loaded. Out: the same object with its matrices packed; the
     embedding stays as it is. Two ways: oneDNN's order of the same numbers; or, where float32
     computes and the checkpoint's numbers are no finer, float16 (FBGEMM), widened as they are read.
     A decode step is bound by the bytes of its matrices.
Rule: what a library cannot do with a matrix on this machine is left as it is.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.models.decoder_weights import MATRICES, DecoderWeights, Linear
from naiad.llm.models.packed_integers import PackedInt4Linear, PackedInt8Linear, apply_packed
from naiad.llm.models.quantized_linear import PartedLinear


@dataclass(slots=True)
class HalfLinear(Linear):
    """`weight` is empty: the numbers are in `packed`, and so is the bias."""

    packed: Any = None


def pack_weights(weights: DecoderWeights, is_half_enough: bool = False) -> None:
    """One matrix after the other, so that only one is there twice."""
    for layer in weights.layers:
        for name in MATRICES:
            setattr(layer, name, pack(getattr(layer, name), is_half_enough))
    weights.head = pack(weights.head, is_half_enough)


def pack(linear: Linear, is_half_enough: bool) -> Linear:
    weight = linear.weight
    if isinstance(linear, PartedLinear):
        linear.parts = [pack(part, is_half_enough) for part in linear.parts]
    if type(linear) is not Linear or weight.is_mkldnn:
        return linear
    if is_half_enough and can_halve(weight):
        # Rounded here: the packing warns about numbers that are too small for float16.
        packed = torch.ops.quantized.linear_prepack_fp16(weight.half().float(), linear.bias)
        return HalfLinear(torch.empty(0), None, packed)
    return (
        Linear(torch.ops.mkldnn._reorder_linear_weight(weight), linear.bias)
        if can_reorder(weight.dtype)
        else linear
    )


def can_halve(weight: Tensor) -> bool:
    has_library = platform.machine() in ("x86_64", "AMD64") and torch.backends.quantized.engine in (
        "x86",
        "fbgemm",
    )
    return (
        has_library
        and weight.dtype == torch.float32
        and float(weight.abs().max()) <= torch.finfo(torch.float16).max
    )


def can_reorder(dtype: torch.dtype) -> bool:
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_fast_bfloat16())


def has_fast_bfloat16() -> bool:
    """Instructions for products of bfloat16; oneDNN refuses it on older processors."""
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16"))


def apply_linear(x: Tensor, linear: Linear) -> Tensor:
    if isinstance(linear, HalfLinear):
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, linear.packed)
    elif isinstance(linear, PackedInt4Linear | PackedInt8Linear):
        product = apply_packed(x, linear)
    elif isinstance(linear, PartedLinear):
        product = torch.cat([apply_linear(x, part) for part in linear.parts], dim=-1)
    elif linear.weight.is_mkldnn:
        product = torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "none", [], "")
    else:
        product = F.linear(x, linear.weight, linear.bias)
    return product


def apply_linear_add(x: Tensor, linear: Linear, addend: Tensor) -> Tensor:
    if type(linear) is Linear and linear.weight.is_mkldnn:
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, addend, linear.weight, linear.bias, "add"
        )
        return total
    return apply_linear(x, linear).add_(addend)
