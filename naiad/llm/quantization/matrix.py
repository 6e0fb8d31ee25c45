"""A quantized matrix as every format's reader leaves it and every kernel's packing starts from it.

The weight of output n and input k is (values[n, k] - zero) * scale, with scale and zero of n's row
and k's group.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class WeightKind(enum.StrEnum):
    INT4 = "int4"
    INT8 = "int8"
    FP8 = "fp8"


MIDDLE = {WeightKind.INT4: 8, WeightKind.INT8: 128}
"""The zero point of symmetric integers, which are kept unsigned."""


@dataclass(slots=True)
class QuantizedMatrix:
    kind: WeightKind
    values: Tensor
    """[outputs, inputs]: uint8, from 0 to 15 or 255, or float8_e4m3fn."""
    scales: Tensor
    """float32 [outputs, groups]."""
    zeros: Tensor | None = None
    """uint8 [outputs, groups]; None: the middle, or 0 in fp8."""
    order: Tensor | None = None
    """int64: column i of `values` belongs to input order[i]. None: columns are in the inputs'
    order."""
    input_factor: Tensor | None = None
    """float32 [inputs]: inputs, in the order of the columns, are multiplied by it first."""
    input_scale: Tensor | None = None
    """float32, one number: the calibrated scale by which activations are quantized to fp8."""
    has_quantized_inputs: bool = False
    """Activations are quantized too, by `input_scale` or each row by its own."""

    @property
    def num_outputs(self) -> int:
        return self.values.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.values.shape[1]

    @property
    def group(self) -> int:
        return self.num_inputs // self.scales.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        wide = self.values.float()
        if self.kind is not WeightKind.FP8:
            zeros = (
                float(MIDDLE[self.kind])
                if self.zeros is None
                else self.zeros.float().repeat_interleave(self.group, 1)
            )
            wide = wide - zeros
        wide = wide * self.scales.repeat_interleave(self.group, 1)
        if self.input_factor is not None:
            wide = wide * self.input_factor
        if self.order is not None:
            inverse = torch.empty_like(self.order)
            inverse[self.order] = torch.arange(self.order.shape[0], device=self.order.device)
            wide = wide[:, inverse]
        return wide.to(dtype)

    def rearranged(self, rows: Tensor) -> QuantizedMatrix:
        """Returns a matrix with these outputs in the order of `rows`."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, values=self.values[rows], scales=self.scales[rows], zeros=zeros)

    def columns(self, start: int, end: int) -> QuantizedMatrix:
        """Returns a matrix with these inputs only. Raises ValueError if that cuts a group of
        inputs that share a scale, or if the inputs are not in order."""
        if self.order is not None:
            raise ValueError("its groups are not in the order of the inputs (act-order)")
        count = self.scales.shape[1]
        if count > 1 and (start % self.group or end % self.group):
            raise ValueError(
                f"inputs {start} to {end} do not begin and end with a group of {self.group}"
            )
        groups = slice(start // self.group, end // self.group) if count > 1 else slice(None)
        return replace(
            self,
            values=self.values[:, start:end].contiguous(),
            scales=self.scales[:, groups].contiguous(),
            zeros=None if self.zeros is None else self.zeros[:, groups].contiguous(),
            input_factor=None if self.input_factor is None else self.input_factor[start:end],
        )


def can_merge(parts: list[QuantizedMatrix]) -> bool:
    """They differ in nothing that one kernel launch must have once."""
    first = parts[0]
    for other in parts[1:]:
        if (other.kind, other.group, other.has_quantized_inputs) != (
            first.kind,
            first.group,
            first.has_quantized_inputs,
        ):
            return False
        if (other.order is None) != (first.order is None) or (other.input_scale is None) != (
            first.input_scale is None
        ):
            return False
        if not _are_equal(other.input_factor, first.input_factor):
            return False
        if (
            other.order is not None
            and first.order is not None
            and not torch.equal(other.order, first.order)
        ):
            return False
    return True


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def merge(parts: list[QuantizedMatrix]) -> QuantizedMatrix:
    """Rows of all parts one under the other; of several calibrated input scales the largest, which
    cuts nothing off."""
    first = parts[0]
    if len(parts) == 1:
        return first
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([_zeros(part) for part in parts])
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(first.values.dtype)
    given = [part.input_scale for part in parts if part.input_scale is not None]
    input_scale = torch.stack(given).amax() if given else None
    return replace(
        first,
        values=values,
        scales=torch.cat([part.scales for part in parts]),
        zeros=zeros,
        input_scale=input_scale,
    )


def _zeros(part: QuantizedMatrix) -> Tensor:
    return (
        torch.full_like(part.scales, MIDDLE[part.kind], dtype=torch.uint8)
        if part.zeros is None
        else part.zeros
    )
