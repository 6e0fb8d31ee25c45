"""QuantizedMatrix -> the tensors of a checkpoint, and its quantization_config: in
compressed-tensors' layout or AutoAWQ's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind
from naiad.llm.quantization.packing import AWQ_ORDER, pack

BITS = {WeightKind.INT4: 4, WeightKind.INT8: 8}


def compressed_tensors(
    module: str, matrix: QuantizedMatrix, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Scales of integers are written in the model's own 16-bit type, as llm-compressor does it."""
    if matrix.kind is WeightKind.FP8:
        tensors = {
            f"{module}.weight": matrix.values,
            f"{module}.weight_scale": matrix.scales.to(dtype),
        }
        if matrix.input_scale is not None:
            tensors[f"{module}.input_scale"] = matrix.input_scale.reshape(1).to(dtype)
        return tensors
    bits = BITS[matrix.kind]
    tensors = {
        f"{module}.weight_packed": pack(matrix.values, bits, 1),
        f"{module}.weight_scale": matrix.scales.to(dtype),
        f"{module}.weight_shape": torch.tensor(
            [matrix.num_outputs, matrix.num_inputs], dtype=torch.int64
        ),
    }
    if matrix.zeros is not None:
        tensors[f"{module}.weight_zero_point"] = pack(matrix.zeros, bits, 0)
    return tensors


KV_CACHE_SCHEME: dict[str, Any] = {
    "num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False,
    "group_size": None, "observer": "minmax", "observer_kwargs": {}, "block_structure": None,
    "actorder": None,
}  # fmt: skip


def compressed_tensors_config(
    kind: WeightKind, group: int, is_symmetric: bool, is_static: bool, ignore: list[str]
) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": BITS.get(kind, 8), "type": "float" if kind is WeightKind.FP8 else "int",
        "symmetric": is_symmetric, "dynamic": False,
        "strategy": "group" if group else "channel", "group_size": group or None,
        "observer": "minmax", "observer_kwargs": {},
        "block_structure": None, "actorder": None,
    }  # fmt: skip
    inputs = None
    if kind is WeightKind.FP8:
        inputs = {
            **weights, "strategy": "tensor" if is_static else "token", "dynamic": not is_static,
            "group_size": None,
            "observer": "minmax" if is_static else None,
        }  # fmt: skip
    scheme = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if kind is WeightKind.FP8 else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def awq(module: str, matrix: QuantizedMatrix) -> dict[str, Tensor]:
    if matrix.kind is not WeightKind.INT4 or matrix.num_outputs % 8:
        raise invalid_arg(
            f"module '{module}' cannot be written in AutoAWQ's layout, which has int4 and "
            "multiples of 8 outputs"
        )
    zeros = (
        torch.full_like(matrix.scales, MIDDLE[WeightKind.INT4], dtype=torch.uint8)
        if matrix.zeros is None
        else matrix.zeros
    )
    return {
        f"{module}.qweight": pack(matrix.values.t().contiguous(), 4, 1, AWQ_ORDER),
        f"{module}.qzeros": pack(zeros.t().contiguous(), 4, 1, AWQ_ORDER),
        f"{module}.scales": matrix.scales.t().contiguous().half(),
    }


def awq_config(group: int, ignore: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group,
        "zero_point": True,
        "modules_to_not_convert": ignore or None,
    }  # fmt: skip
