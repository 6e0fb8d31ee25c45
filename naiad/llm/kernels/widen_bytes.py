"""int8 or fp8 weights with scales per output and group -> 16 bits, the whole matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, wait_for_inputs

BLOCK = 256
LINES = 8


@triton.jit
def _widen_bytes_kernel(
    w_ptr,
    scales_ptr,
    out_ptr,
    num_outputs,
    K,
    group,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    outputs = tl.program_id(0) * LINES + tl.arange(0, LINES)
    inputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (outputs < num_outputs)[:, None] & (inputs < K)[None, :]
    wait_for_inputs(IS_DEPENDENT)
    at = outputs.to(tl.int64)[:, None] * K + inputs[None, :]
    w = tl.load(w_ptr + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(
        scales_ptr + (inputs // group)[None, :] * num_outputs + outputs[:, None],
        mask=mask,
        other=0.0,
    )
    tl.store(out_ptr + at, (w * scale).to(out_ptr.dtype.element_ty), mask=mask)


_launch_widen_bytes = Kernel(_widen_bytes_kernel)


def widen_bytes(weight: Tensor, scales: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    num_outputs, num_inputs = weight.shape
    out = torch.empty((num_outputs, num_inputs), dtype=dtype, device=weight.device)
    _launch_widen_bytes(
        (triton.cdiv(num_outputs, LINES), triton.cdiv(num_inputs, BLOCK)), (weight, scales, out),
        (num_outputs, num_inputs, group or num_inputs), LINES=LINES, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
