"""Checkpoints of TensorRT-LLM's own quantizer: config.json with `architecture` and `quantization`,
tensors in rank0.safetensors.

W4A16_AWQ: weight uint8 or int8 [outputs / 2, inputs], the even output in the low half of a byte,
from -8 to 7; weights_scaling_factor [outputs, groups]; prequant_scaling_factor [inputs], by which
inputs are multiplied first. FP8: weight and weights_scaling_factor, activation_scaling_factor, one
number each. Where a factor can be moved into the matrix before, it is: mlp.proj's inputs are
mlp.gate's outputs, times something.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.format import check_group, check_scales, check_shape, get
from naiad.llm.quantization.fp8 import FP8
from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind

METHOD = "tensorrt_llm"
ALGORITHMS = ("W4A16_AWQ", "FP8")


class TensorrtLlmFormat:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.algorithm = raw.get("quant_algo")
        if self.algorithm not in ALGORITHMS:
            raise unsupported(
                f"quant_algo '{self.algorithm}' of TensorRT-LLM has no kernel here, expected one "
                f"of {', '.join(ALGORITHMS)}"
            )
        if raw.get("has_zero_point"):
            raise unsupported(
                "TensorRT-LLM's W4A16_AWQ with zero points is not read, expected has_zero_point: "
                "false"
            )
        self.group = int(raw.get("group_size") or 128)

    @property
    def description(self) -> str:
        return f"TensorRT-LLM {self.algorithm}" + (
            f", int4 in groups of {self.group}" if self.algorithm == "W4A16_AWQ" else ", fp8"
        )

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        if f"{module}.weights_scaling_factor" not in names:
            return None
        return (
            self._int4(source, names, module)
            if self.algorithm == "W4A16_AWQ"
            else self._fp8(source, names, module)
        )

    def _int4(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix:
        packed = get(source, names, f"{module}.weight")
        if packed.dtype not in (torch.uint8, torch.int8):
            raise invalid_arg(
                f"tensor '{module}.weight' is {packed.dtype}, expected uint8 or int8, with two "
                "weights in each"
            )
        packed = packed.view(torch.uint8)
        num_outputs, num_inputs = 2 * packed.shape[0], packed.shape[1]
        # From two's complement to 0..15: the highest of the four bits is turned over.
        values = torch.stack((packed & 15, packed >> 4), dim=1).reshape(num_outputs, num_inputs) ^ 8
        name = f"{module}.weights_scaling_factor"
        scales = check_scales(name, get(source, names, name))
        check_shape(
            name,
            scales,
            (num_outputs, num_inputs // check_group(module, num_inputs, self.group)),
            "one per output and group",
        )
        factor = self._factor(source, names, module, num_inputs)
        stem = module.removesuffix("mlp.gate")
        if stem != module and f"{stem}mlp.proj.prequant_scaling_factor" in names:
            moved = self._factor(source, names, f"{stem}mlp.proj", num_outputs)
            assert moved is not None
            scales = scales * moved[:, None]
        if (
            module.endswith("mlp.proj")
            and f"{module.removesuffix('proj')}gate.weights_scaling_factor" in names
        ):
            factor = None
        return QuantizedMatrix(WeightKind.INT4, values, scales.contiguous(), input_factor=factor)

    def _factor(
        self, source: TensorSource, names: set[str], module: str, size: int
    ) -> Tensor | None:
        name = f"{module}.prequant_scaling_factor"
        if name not in names:
            return None
        factor = check_scales(name, source.get(name)).flatten()
        check_shape(name, factor, (size,), "one per input")
        return factor

    def _fp8(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix:
        weight = get(source, names, f"{module}.weight")
        if weight.dtype in (torch.uint8, torch.int8):
            weight = weight.view(FP8)
        scale = check_scales(
            f"{module}.weights_scaling_factor",
            get(source, names, f"{module}.weights_scaling_factor"),
        ).flatten()
        check_shape(f"{module}.weights_scaling_factor", scale, (1,), "one per matrix")
        name = f"{module}.activation_scaling_factor"
        given = check_scales(name, source.get(name)).flatten()[0] if name in names else None
        scales = scale[None].expand(weight.shape[0], 1).contiguous()
        return QuantizedMatrix(
            WeightKind.FP8, weight, scales, input_scale=given, has_quantized_inputs=True
        )
