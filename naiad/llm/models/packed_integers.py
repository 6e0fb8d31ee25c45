"""int4 and int8 matrices on a CPU, kept packed: torch's kernels widen them as they are read, a few
rows at a time.

In:  QuantizedMatrix. Out: Linears that packed_linear.py multiplies. Activations are rounded to
     bfloat16 on the way in, for which these kernels are written; sums are float32.
Rule: what the kernels cannot do (groups of int8, sizes that are no multiple of 16) becomes float16
      by packed_linear.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from naiad.llm.models.decoder_weights import Linear
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind

INT4_GROUPS = (32, 64, 128, 256)


@dataclass(slots=True)
class PackedInt4Linear(Linear):
    """`weight` is in the order of torch's int4 kernel."""

    scales_and_zeros: Tensor = field(default_factory=lambda: torch.empty(0))
    """bfloat16 [groups, outputs, 2]: the factor, and what is added."""
    group: int = 128
    order: Tensor | None = None
    input_factor: Tensor | None = None


@dataclass(slots=True)
class PackedInt8Linear(Linear):
    """`weight` is int8 [outputs, inputs]."""

    scales: Tensor = field(default_factory=lambda: torch.empty(0))
    """bfloat16 [outputs]."""
    order: Tensor | None = None


def pack_integers(matrix: QuantizedMatrix, bias: Tensor | None) -> Linear | None:
    """None where torch has no kernel for this matrix."""
    if matrix.kind is WeightKind.INT4:
        return _pack_int4(matrix, bias)
    is_plain = matrix.zeros is None and matrix.input_factor is None
    if matrix.kind is WeightKind.INT8 and is_plain and matrix.group == matrix.num_inputs:
        values = (matrix.values.to(torch.int16) - MIDDLE[WeightKind.INT8]).to(torch.int8)
        return PackedInt8Linear(values, bias, matrix.scales[:, 0].bfloat16(), matrix.order)
    return None


def _pack_int4(matrix: QuantizedMatrix, bias: Tensor | None) -> Linear | None:
    group = matrix.group
    scales, zeros = matrix.scales, matrix.zeros
    if group not in INT4_GROUPS:
        part = next((size for size in reversed(INT4_GROUPS) if group % size == 0), None)
        if part is None:
            return None
        scales = scales.repeat_interleave(group // part, 1)
        zeros = None if zeros is None else zeros.repeat_interleave(group // part, 1)
        group = part
    if matrix.num_outputs % 16 or matrix.num_inputs % 32:
        return None
    added = (
        torch.zeros_like(scales)
        if zeros is None
        else (MIDDLE[WeightKind.INT4] - zeros.float()) * scales
    )
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.values.to(torch.int32), 1)
    both = torch.stack((scales.t(), added.t()), dim=-1).bfloat16().contiguous()
    return PackedInt4Linear(packed, bias, both, group, matrix.order, matrix.input_factor)


def apply_packed(x: Tensor, linear: PackedInt4Linear | PackedInt8Linear) -> Tensor:
    rows = x if linear.order is None else x.index_select(1, linear.order)
    if isinstance(linear, PackedInt4Linear) and linear.input_factor is not None:
        rows = rows * linear.input_factor
    rows = rows.bfloat16().contiguous()
    product: Tensor
    if isinstance(linear, PackedInt4Linear):
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, linear.weight, linear.group, linear.scales_and_zeros
        )
    else:
        product = torch.ops.aten._weight_int8pack_mm(rows, linear.weight, linear.scales)
    total = product.to(x.dtype)
    return total if linear.bias is None else total + linear.bias
