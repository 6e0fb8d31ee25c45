"""compressed-tensors, which llm-compressor writes: pack-quantized integers, int-quantized, and
float-quantized fp8.

config_groups say for which modules which scheme holds; the tensors beside a module say what was
done to it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.format import (
    check_group,
    check_scales,
    check_shape,
    check_type,
    get,
    without_middle,
)
from naiad.llm.quantization.fp8 import read_blocks, read_rows
from naiad.llm.quantization.gptq import KINDS
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix
from naiad.llm.quantization.packing import unpack

FORMATS = (
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "mixed-precision",
)


class Arguments(msgspec.Struct, kw_only=True):
    """QuantizationArgs of compressed-tensors, as far as weights and inputs need them."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    group_size: int | None = None
    symmetric: bool = True
    dynamic: bool | str = False
    block_structure: Any = None
    actorder: Any = None


class Scheme(msgspec.Struct, kw_only=True):
    targets: list[str] = []
    weights: Arguments | None = None
    input_activations: Arguments | None = None
    format: str | None = None


class CompressedTensorsFormat:
    """`QuantizationFormat` of format.py."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.layout = str(raw.get("format", ""))
        if self.layout not in FORMATS:
            raise unsupported(
                f"compressed-tensors' format '{self.layout}' has no kernel here, expected one of "
                f"{', '.join(FORMATS[:3])}"
            )
        try:
            groups = msgspec.convert(raw.get("config_groups") or {}, dict[str, Scheme])
        except msgspec.ValidationError as error:
            raise invalid_arg(
                f"config_groups of quantization_config cannot be read: {error}"
            ) from None
        self.schemes = [scheme for scheme in groups.values() if scheme.weights is not None]
        if not self.schemes:
            raise invalid_arg("quantization_config has no config_groups that quantize weights")
        for scheme in self.schemes:
            _check(scheme)

    @property
    def description(self) -> str:
        return "compressed-tensors, " + " and ".join(
            dict.fromkeys(_described(scheme) for scheme in self.schemes)
        )

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        if f"{module}.weight_scale" not in names:
            return None
        scheme = self._scheme(module)
        weights = scheme.weights
        assert weights is not None
        if weights.type == "float":
            if weights.strategy == "block":
                block = weights.block_structure or [128, 128]
                return read_blocks(
                    source, names, module, (int(block[0]), int(block[1])), f"{module}.weight_scale"
                )
            inputs = scheme.input_activations
            matrix = read_rows(
                source, names, module, inputs is not None and inputs.dynamic is False
            )
            matrix.has_quantized_inputs = inputs is not None
            return matrix
        return self._integers(source, names, module, weights)

    def _scheme(self, module: str) -> Scheme:
        for scheme in self.schemes:
            if any(_matches(target, module) for target in scheme.targets):
                return scheme
        raise invalid_arg(
            f"module '{module}' has scales, but no config group of quantization_config has it as "
            "a target"
        )

    def _integers(
        self, source: TensorSource, names: set[str], module: str, weights: Arguments
    ) -> QuantizedMatrix:
        bits, kind = weights.num_bits, KINDS[weights.num_bits]
        if f"{module}.weight_packed" in names:
            packed = source.get(f"{module}.weight_packed")
            check_type(f"{module}.weight_packed", packed, torch.int32)
            shape = get(source, names, f"{module}.weight_shape").tolist()
            values = unpack(packed, bits, 1)[:, : shape[1]]
            check_shape(
                f"{module}.weight_packed", values, tuple(shape), f"as '{module}.weight_shape' says"
            )
        else:
            weight = get(source, names, f"{module}.weight")
            check_type(f"{module}.weight", weight, torch.int8)
            values = (weight.to(torch.int16) + MIDDLE[kind]).to(torch.uint8)
        num_outputs, num_inputs = values.shape
        scales = check_scales(
            f"{module}.weight_scale", get(source, names, f"{module}.weight_scale")
        )
        scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
        if weights.strategy == "tensor":
            scales = scales.expand(num_outputs, 1)
        is_grouped = weights.strategy == "group"
        group = (
            check_group(module, num_inputs, weights.group_size or 0) if is_grouped else num_inputs
        )
        check_shape(
            f"{module}.weight_scale",
            scales,
            (num_outputs, num_inputs // group),
            f"{group} inputs share one",
        )
        order = self._order(source, names, module, num_inputs, group)
        return QuantizedMatrix(
            kind=kind,
            values=(values if order is None else values[:, order]).contiguous(),
            scales=scales.contiguous(),
            zeros=self._zeros(source, names, module, weights, num_outputs, num_inputs // group),
            order=order,
        )

    def _zeros(
        self,
        source: TensorSource,
        names: set[str],
        module: str,
        weights: Arguments,
        outputs: int,
        groups: int,
    ) -> Tensor | None:
        name = f"{module}.weight_zero_point"
        if weights.symmetric or name not in names:
            return None
        zeros, middle = source.get(name), MIDDLE[KINDS[weights.num_bits]]
        if zeros.dtype == torch.int32 and zeros.shape[0] != outputs:
            zeros = unpack(zeros, weights.num_bits, 0)[:outputs]
        else:
            zeros = (zeros.to(torch.int16) + middle).to(torch.uint8)
        check_shape(name, zeros, (outputs, groups), "one per scale")
        return without_middle(zeros, middle)

    def _order(
        self, source: TensorSource, names: set[str], module: str, num_inputs: int, group: int
    ) -> Tensor | None:
        name = f"{module}.weight_g_idx"
        if name not in names:
            return None
        groups = source.get(name).long()
        plain = torch.arange(num_inputs, device=groups.device) // group
        if bool((groups == -1).all()) or torch.equal(groups, plain):
            return None
        counts = torch.bincount(groups.clamp_min(0), minlength=num_inputs // group)
        if groups.shape[0] != num_inputs or bool((counts != group).any()):
            raise invalid_arg(f"tensor '{name}' does not put {group} inputs into each group")
        return torch.argsort(groups, stable=True)


def _check(scheme: Scheme) -> None:
    weights = scheme.weights
    assert weights is not None
    known = weights.num_bits in (4, 8) if weights.type == "int" else weights.num_bits == 8
    if not known:
        raise unsupported(
            f"compressed-tensors' {weights.type}{weights.num_bits} weights have no kernel here, "
            "expected int4, int8 or fp8"
        )


def _described(scheme: Scheme) -> str:
    weights, inputs = scheme.weights, scheme.input_activations
    assert weights is not None
    kind = "fp8" if weights.type == "float" else f"int{weights.num_bits}"
    grain = {
        "group": f" in groups of {weights.group_size}",
        "block": " in blocks",
        "tensor": " per tensor",
    }.get(weights.strategy or "", "")
    if inputs is None:
        return f"{kind}{grain}, 16-bit activations"
    if weights.type == "int":
        return f"{kind}{grain}, activations kept in 16 bits"
    return (
        f"{kind}{grain}, {'calibrated' if inputs.dynamic is False else 'dynamic'} activation scales"
    )


def _matches(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return target == "Linear" or module == target or module.endswith(f".{target}")
