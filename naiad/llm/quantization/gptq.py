"""GPTQ as AutoGPTQ and GPTQModel write it: qweight int32 [inputs / (32 / bits), outputs], qzeros,
scales [groups, outputs], g_idx.

Zero points are stored less one, except in GPTQModel's `gptq_v2`. With act-order, g_idx says which
group each input belongs to; columns are put in the groups' order here, and the activations are put
in it before the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.format import (
    check_group,
    check_scales,
    check_shape,
    check_type,
    get_scales_and_zeros,
    without_middle,
)
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind
from naiad.llm.quantization.packing import unpack

KINDS = {4: WeightKind.INT4, 8: WeightKind.INT8}


class GptqFormat:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.bits = int(raw.get("bits", 4))
        if self.bits not in KINDS:
            raise unsupported(
                f"quantization_config has GPTQ with {self.bits} bits, expected 4 or 8"
            )
        self.group = int(raw.get("group_size", 128))
        self.offset = 0 if raw.get("checkpoint_format") == "gptq_v2" else 1
        self.is_ordered = bool(raw.get("desc_act"))

    @property
    def description(self) -> str:
        return (
            f"GPTQ, int{self.bits} in groups of "
            f"{self.group}{', act-order' if self.is_ordered else ''}"
        )

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        if f"{module}.qweight" not in names:
            return None
        packed = source.get(f"{module}.qweight")
        check_type(f"{module}.qweight", packed, torch.int32)
        per_word, kind = 32 // self.bits, KINDS[self.bits]
        num_inputs, num_outputs = packed.shape[0] * per_word, packed.shape[1]
        num_groups = num_inputs // check_group(module, num_inputs, self.group)
        scales, zeros = get_scales_and_zeros(
            source, names, module, num_outputs, num_groups, per_word
        )
        points = unpack(zeros, self.bits, 1)[:, :num_outputs].to(torch.int16) + self.offset
        known = without_middle(points, MIDDLE[kind])
        if known is not None and int(known.max()) > 255:
            raise unsupported(
                f"tensor '{module}.qzeros' has a zero point of 256, which no kernel has; "
                "expected symmetric int8"
            )
        values = unpack(packed, self.bits, 0).t()
        order = self._order(source, names, module, num_inputs, num_groups)
        return QuantizedMatrix(
            kind=kind,
            values=(values if order is None else values[:, order]).contiguous(),
            scales=check_scales(f"{module}.scales", scales).t().contiguous(),
            zeros=None if known is None else known.to(torch.uint8).t().contiguous(),
            order=order,
        )

    def _order(
        self, source: TensorSource, names: set[str], module: str, num_inputs: int, num_groups: int
    ) -> Tensor | None:
        if f"{module}.g_idx" not in names:
            return None
        groups = source.get(f"{module}.g_idx").long()
        check_shape(f"{module}.g_idx", groups, (num_inputs,), "a group for each input")
        plain = torch.arange(num_inputs, device=groups.device) // (num_inputs // num_groups)
        if torch.equal(groups, plain):
            return None
        counts = torch.bincount(groups.clamp_min(0), minlength=num_groups)
        if (
            int(groups.min()) < 0
            or counts.shape[0] != num_groups
            or bool((counts != num_inputs // num_groups).any())
        ):
            raise invalid_arg(
                f"tensor '{module}.g_idx' does not put {num_inputs // num_groups} inputs into "
                f"each of {num_groups} groups"
            )
        return torch.argsort(groups, stable=True)
