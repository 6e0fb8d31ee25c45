"""Round to nearest: a 16-bit matrix -> QuantizedMatrix, without calibration. What `quantization:
fp8 | int8 | int4` does at load."""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind

FP8_MAX = 448.0
GROUPS = (128, 64, 32)
"""Inputs per scale of int4, the best first."""


def round_fp8(weight: Tensor, scale_dtype: torch.dtype = torch.float32) -> QuantizedMatrix:
    scales = fp8_scales(weight, scale_dtype)
    values = (weight.float() / scales).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return QuantizedMatrix(WeightKind.FP8, values, scales, has_quantized_inputs=True)


def fp8_scales(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a scale per output, as [outputs, 1]."""
    largest = weight.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-12)
    return stored_scales(largest / FP8_MAX, dtype)


def stored_scales(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """As a checkpoint will hold them: weights are divided by the very numbers that they are
    multiplied by later."""
    return scales.to(dtype).float().clamp_min(torch.finfo(dtype).tiny)


def round_integers(
    weight: Tensor,
    kind: WeightKind,
    group: int,
    is_symmetric: bool,
    scale_dtype: torch.dtype = torch.float32,
) -> QuantizedMatrix:
    """`group` divides the inputs; 0 means all of them."""
    num_outputs, num_inputs = weight.shape
    groups = weight.float().view(num_outputs, -1, group or num_inputs)
    scales, zeros = group_scales(groups, kind, is_symmetric, scale_dtype)
    largest = 2 * MIDDLE[kind] - 1
    values = (groups / scales[..., None] + _spread(zeros, kind)).round().clamp(0, largest)
    stored = None if zeros is None else zeros.to(torch.uint8)
    return QuantizedMatrix(
        kind, values.to(torch.uint8).view(num_outputs, num_inputs), scales, stored
    )


def group_scales(
    groups: Tensor, kind: WeightKind, is_symmetric: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor | None]:
    """Returns the scales of groups [..., size] and, unless symmetric, their zero points."""
    middle = MIDDLE[kind]
    if is_symmetric:
        return stored_scales(groups.abs().amax(-1).clamp_min(1e-10) / (middle - 1), dtype), None
    low, high = groups.amin(-1).clamp_max(0.0), groups.amax(-1).clamp_min(0.0)
    scales = stored_scales((high - low).clamp_min(1e-10) / (2 * middle - 1), dtype)
    return scales, (-low / scales).round().clamp(0, 2 * middle - 1)


def _spread(zeros: Tensor | None, kind: WeightKind) -> Tensor | float:
    return float(MIDDLE[kind]) if zeros is None else zeros[..., None]
