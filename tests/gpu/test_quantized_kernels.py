"""Products with quantized matrices against float64, over numbers of rows, odd sizes, groups and
biases; and rows quantized on the way."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")
import torch.nn.functional as F  # noqa: N812

from naiad.llm.kernels.activation import silu_mul_fp8
from naiad.llm.kernels.byte_products import ByteProducts
from naiad.llm.kernels.fp8_products import Fp8Products
from naiad.llm.kernels.gpu_linears import GpuLinears
from naiad.llm.kernels.int4_gemm import widen_int4
from naiad.llm.kernels.int4_gemv import int4_gemv, prepare_row
from naiad.llm.kernels.int4_products import Int4Products
from naiad.llm.kernels.norm import rms_norm_fp8
from naiad.llm.kernels.products import Products, settled, whole
from naiad.llm.kernels.quantize_rows import QuantizedRows, quantize_rows
from naiad.llm.models.decoder_config import NormKind
from naiad.llm.models.decoder_weights import Linear, Norm
from naiad.llm.models.operations import Stream
from naiad.llm.models.quantized_linear import Int4Linear
from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind
from naiad.llm.quantization.round_matrix import round_fp8, round_integers
from tests.gpu import reference
from tests.gpu.conftest import IS_INTERPRETED

ROWS = [1, 2, 7, 16, 33, 64, 100, 130, 300]
FEW_ROWS = [1, 3, 17]
EXACT = 6e-3
QUANTIZED = 0.09 if IS_INTERPRETED else 0.04
"""With activations in fp8, whose numbers have four bits. Triton's interpreter cuts them off where a
GPU rounds."""


def quantized(
    kind: str, num_outputs: int, num_inputs: int, group: int, device: Any
) -> QuantizedMatrix:
    weight = torch.randn((num_outputs, num_inputs), device=device) * 0.05
    match kind:
        case "fp8":
            return round_fp8(weight)
        case "fp8-blocks":
            matrix = round_fp8(weight)
            spread = matrix.scales.repeat(1, num_inputs // group) * torch.rand(
                (num_outputs, num_inputs // group), device=device
            )
            return QuantizedMatrix(WeightKind.FP8, matrix.values, spread.contiguous())
        case "int8":
            return round_integers(weight, WeightKind.INT8, group, True)
        case _:
            return round_integers(weight, WeightKind.INT4, group, kind == "int4-symmetric")


def products_of(matrix: QuantizedMatrix, dtype: Any) -> Products:
    if matrix.kind is WeightKind.INT4:
        return Int4Products(dtype)
    return Fp8Products(132, dtype) if matrix.has_quantized_inputs else ByteProducts()


def lay_out(
    matrix: QuantizedMatrix,
    dtype: Any,
    bias: Any | None = None,
    keeps_wide: bool = False,
) -> Linear:
    builder = GpuLinears((9, 0), dtype, keeps_wide)
    builder.check("module", matrix)
    return builder.build(matrix, bias)


CASES = [
    ("fp8", 6144, 4096, 0), ("fp8", 28672, 4096, 0), ("fp8", 4096, 14336, 0), ("fp8", 1536, 576, 0),
    ("fp8", 208, 96, 0),
    ("fp8-blocks", 4096, 4096, 128), ("fp8-blocks", 512, 384, 64),
    ("int8", 4096, 4096, 0), ("int8", 1536, 576, 64), ("int8", 576, 1536, 128),
    ("int4", 6144, 4096, 128), ("int4", 4096, 14336, 128), ("int4", 1536, 576, 64),
    ("int4", 100, 192, 32),
    ("int4-symmetric", 576, 1536, 128), ("int4", 70, 576, 0), ("int4", 4096, 5120, 256),
]  # fmt: skip


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("kind", "num_outputs", "num_inputs", "group"), CASES)
def test_products_are_those_of_the_dequantized_matrix(
    kind: str,
    num_outputs: int,
    num_inputs: int,
    group: int,
    has_bias: bool,
    device: Any,
    is_small: bool,
    narrow: Any,
) -> None:
    if is_small and num_outputs * num_inputs > 1 << 20:
        num_outputs, num_inputs = 112 if kind.startswith("int4") else 96, 512
    matrix = quantized(kind, num_outputs, num_inputs, group, device)
    bias = torch.randn(num_outputs, device=device).to(narrow) if has_bias else None
    linear, products = lay_out(matrix, narrow, bias), products_of(matrix, narrow)
    exact = matrix.dequantize().double()
    for num_rows in FEW_ROWS if is_small else ROWS:
        if is_small and num_rows > 16 and kind == "fp8":
            continue  # torch's scaled product has no CPU form for these sizes
        x = torch.randn((num_rows, num_inputs), device=device).to(narrow)
        expected = x.double() @ exact.t() + (0.0 if bias is None else bias.double())
        tolerance = QUANTIZED if kind == "fp8" and num_rows > 1 else EXACT
        assert (
            reference.relative_error(products.multiply(x, linear, False), expected) < tolerance
        ), num_rows
        parts = products.multiply(x, linear, True)
        total = whole(parts, bias, narrow) if parts.dim() == 3 else parts
        assert reference.relative_error(total, expected) < tolerance, num_rows
        residual = torch.randn((num_rows, num_outputs), device=device).to(narrow)
        stream = products.multiply_add(x, linear, residual.clone())
        assert (
            reference.relative_error(settled(stream), expected + residual.double()) < tolerance
        ), num_rows


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_one_row_with_its_norm_and_its_residual(
    kind: str, device: Any, is_small: bool, narrow: Any
) -> None:
    num_outputs, num_inputs = (96, 512) if is_small else (4096, 4096)
    matrix = quantized(kind, 2 * num_outputs, num_inputs, 128, device)
    linear, products = lay_out(matrix, narrow), products_of(matrix, narrow)
    x = torch.randn((1, num_inputs), device=device).to(narrow)
    norm = Norm(NormKind.RMS, (torch.rand(num_inputs, device=device) + 0.5).to(narrow), None, 1e-5)
    expected = reference.rms_norm(x, norm.weight, 1e-5) @ matrix.dequantize().double().t()
    gated = F.silu(expected[:, :num_outputs]) * expected[:, num_outputs:]
    product = products.norm_one(Stream(x), norm, linear, False)
    if product is None:
        product = products.multiply(products.norm(Stream(x), norm, linear), linear, True)
    assert reference.relative_error(product, expected) < EXACT
    inner = products.norm_one(Stream(x), norm, linear, True)
    if inner is not None:
        assert reference.relative_error(inner, gated) < 2 * EXACT
    down = quantized(kind, 64, 512, 128, device)
    down_linear = lay_out(down, narrow)
    merged = torch.randn((1, 1024), device=device).to(narrow)
    rows = products.silu_mul(merged, down_linear, narrow)
    wide = merged.double()
    residual = torch.randn((1, 64), device=device).to(narrow)
    found = products.add_one(rows, down_linear, residual.clone())
    if found is None:
        found = settled(products.multiply_add(rows, down_linear, residual.clone()))
    total = (
        F.silu(wide[:, :512]) * wide[:, 512:]
    ) @ down.dequantize().double().t() + residual.double()
    assert reference.relative_error(found, total) < (QUANTIZED if kind == "fp8" else EXACT)


def test_a_row_with_outliers_keeps_its_small_numbers(device: Any, narrow: Any) -> None:
    """The gemv computes in float16: numbers ten thousand times the others must neither overflow nor
    drown them."""
    matrix = quantized("int4", 64, 512, 128, device)
    linear = lay_out(matrix, narrow)
    assert isinstance(linear, Int4Linear)
    x = torch.randn((1, 512), device=device)
    x[0, 5], x[0, 300] = 3e4, -1e4
    x = x.to(narrow)
    out = int4_gemv(prepare_row(x), linear.weight, linear.scales, 128, torch.float32)
    assert reference.relative_error(out, x.double() @ matrix.dequantize().double().t()) < 1e-3


@pytest.mark.parametrize("keeps_wide", [False, True])
def test_widened_matrices_are_the_dequantized_ones(
    keeps_wide: bool, device: Any, narrow: Any
) -> None:
    matrix = quantized("int4", 100, 576, 64, device)
    linear = lay_out(matrix, narrow, keeps_wide=keeps_wide)
    assert isinstance(linear, Int4Linear)
    wide = (
        linear.wide
        if linear.wide is not None
        else widen_int4(linear.weight, linear.scales, 64, 576, narrow)
    )
    assert reference.relative_error(wide, matrix.dequantize()) < 3e-3


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("width", [576, 4096, 14336])
def test_rows_in_fp8(width: int, is_static: bool, device: Any, narrow: Any) -> None:
    """The row kernel, the norm and silu-mul give equal numbers within fp8's steps, and scales that
    restore them."""

    def check(rows: QuantizedRows, expected: Any) -> None:
        back = rows.values.double() * rows.scales.double()
        assert reference.relative_error(back, expected) < QUANTIZED

    x = torch.randn((5, width), device=device).to(narrow)
    scale = (x.abs().max().float() / 400) if is_static else None
    check(quantize_rows(x, scale), x.double())
    weight = (torch.rand(width, device=device) + 0.5).to(narrow)
    parts = torch.randn((2, 5, width), device=device)
    stream = x.clone()
    normed = reference.rms_norm(x.double() + parts.double().sum(0), weight, 1e-5)
    static = (normed.abs().max() / 400).float() if is_static else None
    check(rms_norm_fp8(stream, weight, 1e-5, parts, None, static), normed)
    merged = torch.randn((5, 2 * width), device=device).to(narrow)
    inner = F.silu(merged.double()[:, :width]) * merged.double()[:, width:]
    static = (inner.abs().max() / 400).float() if is_static else None
    check(silu_mul_fp8(merged, static), inner)
