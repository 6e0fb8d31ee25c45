"""GPTQ: a matrix is rounded column by column, and what each column loses is made up for by those
that come after it.

In:  a weight and the sum of outer products of its inputs. Out: QuantizedMatrix, as int4 in groups
     with zero points, or as fp8 with a scale per output.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.quantization.matrix import MIDDLE, QuantizedMatrix, WeightKind
from naiad.llm.quantization.round_matrix import FP8_MAX, fp8_scales, group_scales

DAMPING = 0.01
BLOCK = 128

RoundColumn = Callable[[Tensor, int], Tensor]
"""Given the weight as it has become and the number of a column: stores that column rounded, and
returns what it stands for."""


def round_gptq(
    name: str, weight: Tensor, hessian: Tensor, group: int, scale_dtype: torch.dtype
) -> QuantizedMatrix:
    """Raises NaiadError if the calibration had too few inputs."""
    kind, num_inputs = WeightKind.INT4, weight.shape[1]
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty((weight.shape[0], num_inputs // group), device=weight.device)
    zeros = torch.empty_like(scales)
    largest = 2 * MIDDLE[kind] - 1

    def round_column(work: Tensor, column: int) -> Tensor:
        if column % group == 0:
            found, points = group_scales(work[:, column : column + group], kind, False, scale_dtype)
            assert points is not None
            scales[:, column // group], zeros[:, column // group] = found, points
        scale, zero = scales[:, column // group], zeros[:, column // group]
        rounded = (work[:, column] / scale + zero).round().clamp(0, largest)
        values[:, column] = rounded.to(torch.uint8)
        return (rounded - zero) * scale

    _round_columns(name, weight, hessian, round_column)
    return QuantizedMatrix(kind, values, scales, zeros.to(torch.uint8))


def round_gptq_fp8(
    name: str, weight: Tensor, hessian: Tensor, scale_dtype: torch.dtype
) -> QuantizedMatrix:
    """Raises NaiadError if the calibration had too few inputs."""
    scales = fp8_scales(weight, scale_dtype)
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)

    def round_column(work: Tensor, column: int) -> Tensor:
        rounded = (work[:, column] / scales[:, 0]).clamp(-FP8_MAX, FP8_MAX).to(values.dtype)
        values[:, column] = rounded
        return rounded.float() * scales[:, 0]

    _round_columns(name, weight, hessian, round_column)
    return QuantizedMatrix(WeightKind.FP8, values, scales, has_quantized_inputs=True)


def _round_columns(name: str, weight: Tensor, hessian: Tensor, round_column: RoundColumn) -> None:
    work, num_inputs = weight.float().clone(), weight.shape[1]
    inverse = _inverse_factor(name, hessian.clone(), work)
    for start in range(0, num_inputs, BLOCK):
        end = min(start + BLOCK, num_inputs)
        errors = torch.zeros((weight.shape[0], end - start), device=weight.device)
        for column in range(start, end):
            kept = work[:, column] - round_column(work, column)
            error = kept / inverse[column, column]
            work[:, column:end] -= error[:, None] * inverse[column, column:end][None, :]
            errors[:, column - start] = error
        work[:, end:] -= errors @ inverse[start:end, end:]


def _inverse_factor(name: str, hessian: Tensor, weight: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse. Inputs that were never other than zero have no
    say."""
    diagonal = hessian.diagonal()
    is_dead = diagonal == 0
    diagonal[is_dead] = 1.0
    weight[:, is_dead] = 0.0
    diagonal += DAMPING * diagonal.mean()
    try:
        return torch.linalg.cholesky(
            torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True
        )
    except torch.linalg.LinAlgError as error:
        raise invalid_arg(
            f"the inputs of '{name}' do not suffice for GPTQ ({error}); expected a larger "
            "calib_size"
        ) from error
