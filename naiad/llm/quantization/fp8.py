"""fp8 weights with their scales beside them: transformers' and DeepSeek's blocks
(weight_scale_inv), and scales per tensor or output (weight_scale, input_scale) as vLLM, modelopt
and compressed-tensors write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.format import check_scales, check_shape, check_type, get
from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind

FP8 = torch.float8_e4m3fn


class Fp8Format:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        block = raw.get("weight_block_size")
        if block is not None and (len(block) != 2 or min(block) < 1):
            raise invalid_arg(
                f"weight_block_size of quantization_config is {block}, expected two sizes, as in "
                "[128, 128]"
            )
        self.block: tuple[int, int] | None = (
            None if block is None else (int(block[0]), int(block[1]))
        )
        self.is_static = raw.get("activation_scheme") == "static"

    @property
    def description(self) -> str:
        if self.block is not None:
            return f"fp8 in blocks of {self.block[0]} x {self.block[1]}"
        return f"fp8, {'calibrated' if self.is_static else 'dynamic'} activation scales"

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        if f"{module}.weight_scale_inv" in names:
            return read_blocks(
                source, names, module, self.block or (128, 128), f"{module}.weight_scale_inv"
            )
        if f"{module}.weight_scale" not in names:
            return None
        return read_rows(source, names, module, self.is_static)


class ModeloptFormat:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        algorithm = raw.get("quant_algo")
        if algorithm != "FP8":
            raise unsupported(
                f"modelopt's quant_algo '{algorithm}' has no kernel here, expected FP8; `naiad "
                "quantize` makes int4 and fp8"
            )

    @property
    def description(self) -> str:
        return "modelopt fp8, calibrated activation scales"

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        return read_rows(source, names, module, True) if f"{module}.weight_scale" in names else None


def read_rows(
    source: TensorSource, names: set[str], module: str, is_static: bool
) -> QuantizedMatrix:
    """A scale for the tensor, or one per output."""
    weight = get(source, names, f"{module}.weight")
    check_type(f"{module}.weight", weight, FP8)
    scales = check_scales(
        f"{module}.weight_scale", get(source, names, f"{module}.weight_scale")
    ).reshape(-1, 1)
    if scales.shape[0] not in (1, weight.shape[0]):
        raise invalid_arg(
            f"tensor '{module}.weight_scale' has {scales.shape[0]} scales, expected 1 or "
            f"{weight.shape[0]}"
        )
    return QuantizedMatrix(
        kind=WeightKind.FP8,
        values=weight,
        scales=scales.expand(weight.shape[0], 1).contiguous(),
        input_scale=_input_scale(source, names, module) if is_static else None,
        has_quantized_inputs=True,
    )


def read_blocks(
    source: TensorSource, names: set[str], module: str, block: tuple[int, int], scales_name: str
) -> QuantizedMatrix:
    """Scales per block of outputs and inputs, spread over the outputs. Activations stay in 16
    bits."""
    weight = get(source, names, f"{module}.weight")
    check_type(f"{module}.weight", weight, FP8)
    num_outputs, num_inputs = weight.shape
    scales = check_scales(scales_name, get(source, names, scales_name))
    check_shape(
        scales_name,
        scales,
        (-(-num_outputs // block[0]), -(-num_inputs // block[1])),
        f"one per {block[0]} x {block[1]} weights",
    )
    if num_inputs % block[1]:
        raise unsupported(
            f"module '{module}' has {num_inputs} inputs, which blocks of {block[1]} do not "
            "divide: no kernel has that"
        )
    return QuantizedMatrix(
        WeightKind.FP8, weight, scales.repeat_interleave(block[0], 0)[:num_outputs].contiguous()
    )


def _input_scale(source: TensorSource, names: set[str], module: str) -> Tensor | None:
    name = f"{module}.input_scale"
    if name not in names:
        return None
    scale = check_scales(name, source.get(name)).flatten()
    check_shape(name, scale, (1,), "one scale for all activations")
    if float(scale) <= 0.0:
        raise invalid_arg(f"tensor '{name}' is {float(scale):g}, expected more than 0")
    return scale[0]
