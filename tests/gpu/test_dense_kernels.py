"""Norms, activations, embeddings and the two matrix kernels compared with float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch
import torch.nn.functional as F  # noqa: N812

from naiad.llm.kernels.activation import silu_mul
from naiad.llm.kernels.embedding import embed
from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.norm import rms_norm
from naiad.llm.kernels.skinny_gemm import skinny_gemm
from tests.gpu import reference


@pytest.mark.parametrize("hidden", [576, 1024, 4096, 5120])
@pytest.mark.parametrize("num_parts", [0, 1, 4])
def test_rms_norm(hidden: int, num_parts: int, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn((5, hidden), device=device).to(dtype)
    weight = (torch.rand(hidden, device=device) + 0.5).to(dtype)
    parts = torch.randn((num_parts, 5, hidden), device=device) if num_parts else None
    bias = torch.randn(hidden, device=device).to(dtype) if num_parts else None
    whole = x.double() + (
        parts.double().sum(0) + bias.double() if parts is not None and bias is not None else 0.0
    )
    rows = torch.tensor([4, 1], dtype=torch.int32, device=device)
    picked = rms_norm(x, weight, 1e-5, parts, bias, rows)
    out = rms_norm(x, weight, 1e-5, parts, bias)
    expected = reference.rms_norm(whole, weight, 1e-5)
    assert reference.relative_error(out, expected) < reference.TOLERANCE[dtype]
    assert reference.relative_error(picked, expected[[4, 1]]) < reference.TOLERANCE[dtype]
    assert reference.relative_error(x, whole) < reference.TOLERANCE[dtype], (
        "the stream was not brought up to date"
    )


@pytest.mark.parametrize("scale", [1.0, 48.0])
def test_embed_reads_tokens_of_the_host_and_sampled_tokens(
    scale: float, device: torch.device, narrow: torch.dtype
) -> None:
    table = torch.randn((50, 576), device=device).to(narrow)
    next_tokens = torch.tensor([7, 8, 9], dtype=torch.int32, device=device)
    ids = torch.tensor([3, -1, -1, 49], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 2, 0, 1], dtype=torch.int32, device=device)
    out = embed(ids, slots, next_tokens, table, scale)
    expected = table[[3, 9, 7, 49]] * torch.tensor(scale, dtype=narrow)
    assert reference.relative_error(out, expected) < 6e-3


@pytest.mark.parametrize("num_parts", [0, 2])
def test_silu_mul(num_parts: int, device: torch.device, narrow: torch.dtype) -> None:
    x = torch.randn((max(1, num_parts), 3, 2 * 1536), device=device)
    parts = x if num_parts else x[0].to(narrow)
    whole = x.double().sum(0) if num_parts else parts.double()
    out = silu_mul(parts, narrow)
    assert reference.relative_error(out, F.silu(whole[:, :1536]) * whole[:, 1536:]) < 6e-3


@pytest.mark.parametrize("num_inputs", [512, 576, 4096, 14336])
@pytest.mark.parametrize("case", ["plain", "norm", "bias", "residual", "gated"])
def test_gemv(
    case: str, num_inputs: int, device: torch.device, is_small: bool, narrow: torch.dtype
) -> None:
    dtype, num_outputs = narrow, 70 if is_small else 6144
    x = torch.randn((1, num_inputs), device=device).to(dtype)
    weight = torch.randn(
        (2 * num_outputs if case == "gated" else num_outputs, num_inputs), device=device
    ).to(dtype)
    norm = (
        (torch.rand(num_inputs, device=device) + 0.5).to(dtype)
        if case in ("norm", "gated")
        else None
    )
    bias = torch.randn(num_outputs, device=device).to(dtype) if case == "bias" else None
    residual = (
        torch.randn((1, num_outputs), device=device).to(dtype) * 50 if case == "residual" else None
    )
    out = gemv(x, weight, norm, 1e-5, bias, residual, case == "gated")
    wide = x.double() if norm is None else reference.rms_norm(x, norm, 1e-5)
    expected = wide @ weight.double().t()
    if bias is not None:
        expected = expected + bias.double()
    if residual is not None:
        expected = expected + residual.double()
    if case == "gated":
        expected = F.silu(expected[:, :num_outputs]) * expected[:, num_outputs:]
    assert reference.relative_error(out, expected) < 6e-3


@pytest.mark.parametrize("num_rows", [2, 5, 16, 33])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_skinny_gemm(
    num_rows: int, num_splits: int, device: torch.device, is_small: bool, narrow: torch.dtype
) -> None:
    num_inputs, num_outputs = (512, 100) if is_small else (4096, 6100)
    x = torch.randn((num_rows, num_inputs), device=device).to(narrow)
    weight = torch.randn((num_outputs, num_inputs), device=device).to(narrow)
    parts = skinny_gemm(x, weight, num_splits)
    assert parts.shape == (num_splits, num_rows, num_outputs)
    assert reference.relative_error(parts.double().sum(0), x.double() @ weight.double().t()) < 1e-3
