"""Which kernel multiplies, by number of rows and shape of the matrix. Measured ahead on the chip, so that nothing is tuned at start.

In:  activations and a weight. Out: arguments for skinny_gemm, or None where cuBLAS is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

Choice = tuple[int, int, int, int, int]
"""num_splits, block_n, block_k, num_warps, num_stages."""

BLOCK_K = 128


class GemmPlan:
    def __init__(self, num_sms: int, max_skinny_rows: int = 16, use_gemv: bool = True) -> None:
        self.num_sms = num_sms
        self.max_skinny_rows = max_skinny_rows
        self.use_gemv = use_gemv

    def uses_gemv(self, weight: Tensor) -> bool:
        return self.use_gemv and weight.dtype in (torch.bfloat16, torch.float16)

    def skinny(self, x: Tensor, weight: Tensor) -> Choice | None:
        num_rows, num_inputs = x.shape
        if not 1 < num_rows <= self.max_skinny_rows or weight.dtype not in (torch.bfloat16, torch.float16) or num_inputs % BLOCK_K:
            return None
        return (self._num_splits(weight.shape[0], num_inputs), 64, BLOCK_K, 4, 4)

    def _num_splits(self, num_outputs: int, num_inputs: int) -> int:
        """About three programs per SM: enough to hide latency, few enough to keep the parts small."""
        tiles = -(-num_outputs // 64)
        best = 1
        for splits in (2, 4, 8):
            if num_inputs % (splits * BLOCK_K) == 0 and tiles * best < 3 * self.num_sms:
                best = splits
        return best
