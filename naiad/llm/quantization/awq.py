"""AutoAWQ's gemm layout: qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8],
scales [groups, outputs]."""

from __future__ import annotations

from typing import Any

import torch

from naiad.errors import unsupported
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.format import (
    check_group,
    check_scales,
    check_type,
    get_scales_and_zeros,
    without_middle,
)
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind
from naiad.llm.quantization.packing import AWQ_ORDER, unpack


class AwqFormat:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        bits, version = (
            raw.get("bits", raw.get("w_bit", 4)),
            str(raw.get("version", "gemm")).lower(),
        )
        if bits != 4:
            raise unsupported(
                f"quantization_config has AWQ with {bits} bits, expected 4; GPTQ and "
                "compressed-tensors have 8"
            )
        if version != "gemm":
            raise unsupported(
                f"quantization_config has AWQ's layout '{version}', expected gemm: AutoAWQ "
                "converts it, or `naiad quantize`"
            )
        self.group = int(raw.get("group_size", raw.get("q_group_size", 128)))

    @property
    def description(self) -> str:
        return f"AWQ, int4 in groups of {self.group}"

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        if f"{module}.qweight" not in names:
            return None
        packed = source.get(f"{module}.qweight")
        check_type(f"{module}.qweight", packed, torch.int32)
        num_inputs, num_outputs = packed.shape[0], packed.shape[1] * 8
        num_groups = num_inputs // check_group(module, num_inputs, self.group)
        scales, zeros = get_scales_and_zeros(source, names, module, num_outputs, num_groups, 8)
        points = unpack(zeros, 4, 1, AWQ_ORDER).t().contiguous()
        return QuantizedMatrix(
            kind=WeightKind.INT4,
            values=unpack(packed, 4, 1, AWQ_ORDER).t().contiguous(),
            scales=check_scales(f"{module}.scales", scales).t().contiguous(),
            zeros=without_middle(points, MIDDLE[WeightKind.INT4]),
        )
