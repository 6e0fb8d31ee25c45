"""What a checkpoint's quantization must say for itself, and checks that all formats share.

Rule: whether a module is quantized is read off its tensors, by the checkpoint's own unfused names;
      so what `ignore` and `modules_to_not_convert` leave out stays as it is. Every shape is
      checked, and a wrong one is named with its tensor.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.quantization.matrix import QuantizedMatrix


class QuantizationFormat(Protocol):
    @property
    def description(self) -> str:
        """For people: 'AWQ, int4 in groups of 128'."""

    def read(self, source: TensorSource, names: set[str], module: str) -> QuantizedMatrix | None:
        """`module` has no suffix: 'model.layers.0.mlp.up_proj'. None: it is not quantized. Raises
        NaiadError."""


def get(source: TensorSource, names: set[str], name: str) -> Tensor:
    if name not in names:
        raise invalid_arg(f"the checkpoint has no tensor '{name}', which its quantization needs")
    return source.get(name)


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], reason: str) -> None:
    if tuple(tensor.shape) != expected:
        raise invalid_arg(
            f"tensor '{name}' has shape {list(tensor.shape)}, expected {list(expected)}: {reason}"
        )


def check_type(name: str, tensor: Tensor, expected: torch.dtype) -> None:
    if tensor.dtype != expected:
        raise invalid_arg(f"tensor '{name}' is {tensor.dtype}, expected {expected}")


def check_group(module: str, num_inputs: int, group: int) -> int:
    """-1 or 0 mean all inputs."""
    size = num_inputs if group <= 0 else group
    if num_inputs % size:
        raise invalid_arg(
            f"module '{module}' has {num_inputs} inputs, which groups of {size} do not divide"
        )
    return size


def get_scales_and_zeros(
    source: TensorSource,
    names: set[str],
    module: str,
    num_outputs: int,
    num_groups: int,
    per_word: int,
) -> tuple[Tensor, Tensor]:
    """Returns `scales` and `qzeros` of a module as AutoAWQ and GPTQ store them: a row per group,
    with `per_word` zero points in a word. Raises NaiadError if a shape is wrong."""
    scales, zeros = get(source, names, f"{module}.scales"), get(source, names, f"{module}.qzeros")
    check_shape(f"{module}.scales", scales, (num_groups, num_outputs), "a row per group of inputs")
    check_shape(
        f"{module}.qzeros",
        zeros,
        (num_groups, -(-num_outputs // per_word)),
        f"{per_word} zero points in a word",
    )
    return scales, zeros


def check_scales(name: str, scales: Tensor) -> Tensor:
    wide = scales.float()
    if not bool(torch.isfinite(wide).all()):
        raise invalid_arg(f"tensor '{name}' has scales that are not finite numbers")
    return wide


def without_middle(zeros: Tensor, middle: int) -> Tensor | None:
    """Symmetric checkpoints store zero points all the same."""
    return None if bool((zeros == middle).all()) else zeros
