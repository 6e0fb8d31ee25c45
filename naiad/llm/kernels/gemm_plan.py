"""Which kernel multiplies, by number of rows and shape of the matrix. Measured ahead on the chip, so that nothing is tuned at start.

In:  activations and a weight. Out: arguments for skinny_gemm, or None where cuBLAS is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

Choice = tuple[int, int, int, int, int]
"""num_splits, block_n, block_k, num_warps, num_stages."""

BLOCK_N = 64
BLOCK_K = 128
MAX_ROWS = 16
MAX_ROWS_ADDED = 128
"""cuBLAS adds a residual with a copy or a reduction of its own; parts are added by the norm that follows."""


class GemmPlan:
    def __init__(self, max_rows: int = MAX_ROWS, max_rows_added: int = MAX_ROWS_ADDED, use_gemv: bool = True) -> None:
        self.max_rows = max_rows
        self.max_rows_added = max_rows_added
        self.use_gemv = use_gemv

    def uses_gemv(self, weight: Tensor) -> bool:
        return self.use_gemv and weight.dtype in (torch.bfloat16, torch.float16)

    def skinny(self, x: Tensor, weight: Tensor) -> Choice | None:
        return _choose(x, weight) if 1 < x.shape[0] <= self.max_rows else None

    def skinny_add(self, x: Tensor, weight: Tensor) -> Choice | None:
        return _choose(x, weight) if 1 < x.shape[0] <= self.max_rows_added else None


def _choose(x: Tensor, weight: Tensor) -> Choice | None:
    num_outputs, num_inputs = weight.shape
    if weight.dtype not in (torch.bfloat16, torch.float16) or num_inputs % BLOCK_K:
        return None
    tiles = -(-num_outputs // BLOCK_N)
    wanted = 256 if x.shape[0] <= 16 else 128
    splits = 1
    while tiles * splits < wanted and splits < 8 and num_inputs % (2 * splits * BLOCK_K) == 0:
        splits *= 2
    return (splits, BLOCK_N, BLOCK_K, 4, 4 if tiles * splits < 384 else 3)
