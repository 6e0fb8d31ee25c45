"""QuantizedMatrix -> the Linear whose kernel this GPU has; `LinearBuilder` of
quantization/linears.py."""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.errors import unsupported
from naiad.llm.kernels.int4_gemm import int4_tiles, join_scales, widen_int4
from naiad.llm.models.decoder_weights import Linear
from naiad.llm.models.quantized_linear import ByteLinear, Fp8Linear, Int4Linear
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind

FP8_CAPABILITY = (8, 9)
INTEGER_CAPABILITY = (8, 0)
TO_BF16 = "the same checkpoint in bfloat16 works"


class GpuLinears:
    def __init__(self, capability: tuple[int, int], dtype: torch.dtype, keeps_wide: bool) -> None:
        self.capability = capability
        self.dtype = dtype
        self.keeps_wide = keeps_wide
        """int4 matrices also stay in 16 bits, for steps with many rows."""
        self.kernels: dict[str, int] = {}

    def check(self, module: str, matrix: QuantizedMatrix) -> None:
        if self.dtype not in (torch.bfloat16, torch.float16):
            raise unsupported(
                f"module '{module}' is quantized, and kernels for that compute in bfloat16 or "
                f"float16, not {self.dtype}"
            )
        needed = FP8_CAPABILITY if matrix.kind is WeightKind.FP8 else INTEGER_CAPABILITY
        if self.capability < needed:
            nearest = (
                "quantization: int8 works"
                if matrix.kind is WeightKind.FP8 and self.capability >= INTEGER_CAPABILITY
                else TO_BF16
            )
            raise unsupported(
                f"module '{module}' is {matrix.kind}, which needs a GPU of compute capability "
                f"{needed[0]}.{needed[1]}, "
                f"and this one has {self.capability[0]}.{self.capability[1]}; {nearest}"
            )
        self._check_sizes(module, matrix)

    def _check_sizes(self, module: str, matrix: QuantizedMatrix) -> None:
        group, num_inputs = matrix.group, matrix.num_inputs
        if matrix.input_factor is not None and matrix.kind is not WeightKind.INT4:
            raise unsupported(
                f"module '{module}' is {matrix.kind} with factors for its inputs, which only "
                f"int4 may have here; {TO_BF16}"
            )
        if matrix.kind is WeightKind.INT8 and matrix.zeros is not None:
            raise unsupported(
                f"module '{module}' is int8 with zero points, which no kernel here multiplies, "
                "expected symmetric int8"
            )
        if matrix.kind is WeightKind.INT4:
            if group not in (32, 64, num_inputs) and group % 128:
                raise unsupported(
                    f"module '{module}' has int4 in groups of {group}, expected 32, 64, 128 or a "
                    f"multiple of that; {TO_BF16}"
                )
        elif num_inputs % 32 or matrix.num_outputs % 16 or group % 16:
            sizes = f"{matrix.num_outputs} outputs and {num_inputs} inputs"
            raise unsupported(
                f"module '{module}' is {matrix.kind} with {sizes}, expected multiples of 16 and "
                f"32; {TO_BF16}"
            )

    def build(self, matrix: QuantizedMatrix, bias: Tensor | None) -> Linear:
        linear, name = self._build(matrix, bias)
        self.kernels[name] = self.kernels.get(name, 0) + 1
        return linear

    def _build(self, matrix: QuantizedMatrix, bias: Tensor | None) -> tuple[Linear, str]:
        per_output = matrix.group == matrix.num_inputs
        if matrix.kind is WeightKind.INT4:
            return self._int4(matrix, bias), "int4_gemv, int4_gemm" + (
                ", 16-bit copies above 64 rows" if self.keeps_wide else ""
            )
        if matrix.kind is WeightKind.FP8 and matrix.has_quantized_inputs and per_output:
            scales = matrix.scales[:, 0].contiguous()
            return Fp8Linear(
                matrix.values, bias, scales, matrix.input_scale
            ), "fp8 gemv, scaled_gemm, torch._scaled_mm"
        values = matrix.values
        if matrix.kind is WeightKind.INT8:
            values = (values.to(torch.int16) - MIDDLE[WeightKind.INT8]).to(torch.int8)
        scales = matrix.scales.t().contiguous()
        linear = ByteLinear(values, bias, scales, 0 if per_output else matrix.group, matrix.order)
        return linear, f"{matrix.kind} scaled_gemm with 16-bit activations"

    def _int4(self, matrix: QuantizedMatrix, bias: Tensor | None) -> Int4Linear:
        tiles, scales = int4_tiles(matrix.values), join_scales(matrix.scales, matrix.zeros)
        wide = None
        if self.keeps_wide:
            wide = widen_int4(tiles, scales, matrix.group, matrix.num_inputs, self.dtype)
        factor = None if matrix.input_factor is None else matrix.input_factor.to(self.dtype)
        return Int4Linear(
            tiles, bias, scales, matrix.group, matrix.num_inputs, matrix.order, factor, wide
        )
