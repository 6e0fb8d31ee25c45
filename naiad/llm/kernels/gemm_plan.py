"""Chooses the kernel of a product by number of rows and shape of the matrix. The choices were
measured on the chip in advance, so that nothing is tuned at start.

In:  activations and a weight. Out: arguments for skinny_gemm, or None if cuBLAS is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

Choice = tuple[int, int, int, int, int]
"""num_splits, block_n, block_k, num_warps, num_stages."""

BLOCK_N = 64
SHARED_BYTES = 227 << 10
BLOCK_K = 128
MAX_ROWS = 16
MAX_ROWS_ADDED = 128
"""cuBLAS adds a residual with a copy or a reduction of its own; parts are added by the norm that
follows."""


class GemmPlan:
    def __init__(
        self,
        num_sms: int,
        max_rows: int = MAX_ROWS,
        max_rows_added: int = MAX_ROWS_ADDED,
        use_gemv: bool = True,
    ) -> None:
        self.num_sms = num_sms
        self.max_rows = max_rows
        self.max_rows_added = max_rows_added
        self.use_gemv = use_gemv

    def uses_gemv(self, weight: Tensor) -> bool:
        return self.use_gemv and weight.dtype in (torch.bfloat16, torch.float16)

    def skinny(self, x: Tensor, weight: Tensor) -> Choice | None:
        return _choose(x, weight, self.num_sms) if 1 < x.shape[0] <= self.max_rows else None

    def skinny_add(self, x: Tensor, weight: Tensor) -> Choice | None:
        return _choose(x, weight, self.num_sms) if 1 < x.shape[0] <= self.max_rows_added else None


def _choose(x: Tensor, weight: Tensor, num_sms: int) -> Choice | None:
    num_outputs, num_inputs = weight.shape
    if weight.dtype not in (torch.bfloat16, torch.float16) or num_inputs % BLOCK_K:
        return None
    tiles = -(-num_outputs // BLOCK_N)
    wanted = 256 if x.shape[0] <= 16 else 128
    splits = 1
    while tiles * splits < wanted and splits < 8 and num_inputs % (2 * splits * BLOCK_K) == 0:
        splits *= 2
    num_programs = tiles * splits
    # one program fills an SM: a second round would cost as much as the first
    if x.shape[0] > 64 and num_programs > num_sms:
        return None
    return (splits, BLOCK_N, BLOCK_K, 4, _num_stages(num_programs, x.shape[0], num_sms))


def _num_stages(num_programs: int, num_rows: int, num_sms: int) -> int:
    """Returns the largest depth with which all programs run at the same time."""
    block_m = max(16, 1 << (num_rows - 1).bit_length())
    stage_bytes = (BLOCK_N + block_m) * BLOCK_K * 2
    return next(
        (
            stages
            for stages in (4, 3)
            if num_sms * (SHARED_BYTES // (stages * stage_bytes)) >= num_programs
        ),
        3,
    )
