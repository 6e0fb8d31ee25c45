"""Products with 16-bit and 32-bit matrices: gemv for one row, skinny_gemm for a few, cuBLAS for
more (gemm_plan.py)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from naiad.llm.kernels.gemm_plan import GemmPlan
from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.products import PlainRows
from naiad.llm.kernels.rows import Rows
from naiad.llm.kernels.skinny_gemm import skinny_gemm
from naiad.llm.models.decoder_weights import Linear, Norm
from naiad.llm.models.operations import Stream


class DenseProducts(PlainRows):
    """`Products` of products.py."""

    def __init__(self, plan: GemmPlan) -> None:
        self.plan = plan

    def multiply(self, x: Rows, linear: Linear, may_split: bool) -> Tensor:
        assert isinstance(x, Tensor)
        if x.shape[0] == 1 and self.plan.uses_gemv(linear.weight):
            return gemv(x, linear.weight, bias=linear.bias)
        choice = self.plan.skinny(x, linear.weight) if may_split else None
        return (
            F.linear(x, linear.weight, linear.bias)
            if choice is None
            else skinny_gemm(x, linear.weight, *choice)
        )

    def norm_one(self, stream: Stream, norm: Norm, linear: Linear, is_gated: bool) -> Tensor | None:
        if not self.plan.uses_gemv(linear.weight):
            return None
        return gemv(
            stream.value,
            linear.weight,
            norm.weight,
            norm.eps,
            None if is_gated else linear.bias,
            is_gated=is_gated,
        )

    def add_one(self, x: Rows, linear: Linear, residual: Tensor) -> Tensor | None:
        assert isinstance(x, Tensor)
        return (
            gemv(x, linear.weight, bias=linear.bias, residual=residual)
            if self.plan.uses_gemv(linear.weight)
            else None
        )

    def multiply_add(self, x: Tensor, linear: Linear, residual: Tensor) -> Stream:
        """cuBLAS adds in its epilogue; parts are left to the norm that follows."""
        choice = self.plan.skinny_add(x, linear.weight)
        if choice is not None:
            return Stream(residual, skinny_gemm(x, linear.weight, *choice), linear.bias)
        if linear.bias is not None:
            residual += linear.bias
        return Stream(residual.addmm_(x, linear.weight.t()))
