"""The first kernel of a step: looks up token ids (from the host, or the slot's last sampled token)
in the embedding table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs


@triton.jit
def _embed_kernel(
    tokens_ptr, slots_ptr, next_tokens_ptr, table_ptr, out_ptr, hidden, scale,
    BLOCK: tl.constexpr, HAS_SCALE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    wait_for_inputs(IS_DEPENDENT)
    token = tl.load(tokens_ptr + row)
    if token < 0:
        token = tl.load(next_tokens_ptr + tl.load(slots_ptr + row))
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    x = tl.load(table_ptr + token.to(tl.int64) * hidden + columns, mask=mask)
    if HAS_SCALE:
        # The factor itself is rounded to the table's type, as in the reference.
        x = (x.to(tl.float32) * tl.full((), scale, tl.float32).to(x.dtype).to(tl.float32)).to(
            x.dtype
        )
    tl.store(out_ptr + row.to(tl.int64) * hidden + columns, x, mask=mask)


_launch_embed = Kernel(_embed_kernel)


def embed(
    token_ids: Tensor, slots: Tensor, next_tokens: Tensor, table: Tensor, scale: float
) -> Tensor:
    num_tokens, hidden = token_ids.shape[0], table.shape[1]
    out = torch.empty((num_tokens, hidden), dtype=table.dtype, device=table.device)
    _launch_embed(
        (num_tokens,), (token_ids, slots, next_tokens, table, out), (hidden, scale),
        BLOCK=next_power_of_2(hidden), HAS_SCALE=scale != 1.0, num_warps=4,
    )  # fmt: skip
    return out
