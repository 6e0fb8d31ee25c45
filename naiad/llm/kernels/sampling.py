"""Samples next tokens from logits on the device, without a sort and without the host: five small
kernels, all inside a captured graph.

1. adjust: penalties and bitmasks, densely, for rows that have them
2. patch: logit bias and banned stops, a few values per row
3. cut: the smallest logit that top-k, top-p and min-p leave, by a radix search
4. race: argmax of logit / temperature + Gumbel noise, in tiles
5. pick: the best tile's token; next_tokens and the counts are updated

A program whose row does not need the kernel ends at once. The noise is Philox of (seed, position,
token), so it does not depend on the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import Kernel, next_power_of_2, wait_for_inputs
from naiad.llm.step.slot_table import SlotTable

DENSE_BLOCK = 4096
CUT_BLOCK = 1024
RACE_BLOCK = 4096


@triton.jit
def _row_value(rows_ptr, slot, column: tl.constexpr):
    return tl.load(rows_ptr + slot.to(tl.int64) * 16 + column)


@triton.jit
def _row_float(rows_ptr, slot, column: tl.constexpr):
    return tl.load(rows_ptr + slot.to(tl.int64) * 16 + column).to(tl.float32, bitcast=True)


@triton.jit
def _adjust_kernel(
    logits_ptr, adjusted_ptr, rows_ptr, slots_ptr, counts_ptr, masks_ptr, mask_rows_ptr,
    vocab_size, mask_width,
    BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    flags = _row_value(rows_ptr, slot, 0)
    wait_for_inputs(IS_DEPENDENT)
    if flags == 0:
        return
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < vocab_size
    x = tl.load(logits_ptr + row * vocab_size + tokens, mask=mask, other=0.0).to(tl.float32)
    if (flags & 2) != 0:
        counts = tl.load(
            counts_ptr + slot.to(tl.int64) * vocab_size + tokens, mask=mask, other=0
        ).to(tl.int32)
        repetition = _row_float(rows_ptr, slot, 11)
        presence = _row_float(rows_ptr, slot, 12)
        frequency = _row_float(rows_ptr, slot, 13)
        output = (counts & 16383).to(tl.float32)
        x = tl.where(counts != 0, tl.where(x > 0, x / repetition, x * repetition), x)
        x -= output * frequency + tl.where(output > 0, presence, 0.0)
    if (flags & 8) != 0:
        mask_row = tl.load(mask_rows_ptr + row)
        if mask_row >= 0:
            words = tl.load(
                masks_ptr + mask_row.to(tl.int64) * mask_width + tokens // 32, mask=mask, other=0
            )
            x = tl.where(((words >> (tokens % 32)) & 1) != 0, x, float("-inf"))
    tl.store(adjusted_ptr + row * vocab_size + tokens, x, mask=mask)


@triton.jit
def _patch_kernel(
    adjusted_ptr, rows_ptr, slots_ptr, positions_ptr, bias_ids_ptr, bias_values_ptr, stop_ids_ptr,
    vocab_size,
    BIAS_WIDTH: tl.constexpr, STOP_WIDTH: tl.constexpr, STOP_PAD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    flags = _row_value(rows_ptr, slot, 0)
    wait_for_inputs(IS_DEPENDENT)
    if (flags & 5) == 0:
        return
    line = adjusted_ptr + row * vocab_size
    if (flags & 1) != 0:
        index = tl.arange(0, BIAS_WIDTH)
        mask = index < _row_value(rows_ptr, slot, 5)
        tokens = tl.load(bias_ids_ptr + slot.to(tl.int64) * BIAS_WIDTH + index, mask=mask, other=0)
        bias = tl.load(
            bias_values_ptr + slot.to(tl.int64) * BIAS_WIDTH + index, mask=mask, other=0.0
        )
        tl.store(line + tokens, tl.load(line + tokens, mask=mask, other=0.0) + bias, mask=mask)
    tl.debug_barrier()
    if (flags & 4) != 0:
        if tl.load(positions_ptr + row) < _row_value(rows_ptr, slot, 4):
            index = tl.arange(0, STOP_PAD)
            mask = index < _row_value(rows_ptr, slot, 6)
            tokens = tl.load(
                stop_ids_ptr + slot.to(tl.int64) * STOP_WIDTH + index, mask=mask, other=0
            )
            tl.store(line + tokens, tl.full((STOP_PAD,), float("-inf"), tl.float32), mask=mask)


@triton.jit
def _load_logits(logits_ptr, adjusted_ptr, row, tokens, vocab_size, is_adjusted):
    mask = tokens < vocab_size
    if is_adjusted:
        x = tl.load(adjusted_ptr + row * vocab_size + tokens, mask=mask, other=float("-inf"))
    else:
        x = tl.load(logits_ptr + row * vocab_size + tokens, mask=mask, other=float("-inf")).to(
            tl.float32
        )
    return x


@triton.jit
def _ordered(x):
    """Maps floats to uint32 in the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _search(
    logits_ptr, adjusted_ptr, row, vocab_size, is_adjusted, num_passes, best, inverse_temperature,
    floor, target,
    IS_MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the largest ordered value v such that the values >= v (and >= floor) reach the target
    in number or in probability mass."""
    prefix = tl.full((), 0, tl.uint32)
    digits = tl.arange(0, 16)
    for index in range(num_passes):
        shift = (tl.full((), 28, tl.int32) - 4 * index).to(tl.uint32)
        pivots = prefix + (digits.to(tl.uint32) << shift)
        sums = tl.zeros((16,), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            x = _load_logits(
                logits_ptr, adjusted_ptr, row, start + tl.arange(0, BLOCK), vocab_size, is_adjusted
            )
            keys = _ordered(x)
            measure = tl.where((keys >= floor) & (x > float("-inf")), 1.0, 0.0)
            if IS_MASS:
                measure = measure * tl.exp((x - best) * inverse_temperature)
            sums += tl.sum(
                tl.where(keys[:, None] >= pivots[None, :], measure[:, None], 0.0), axis=0
            )
        digit = tl.max(tl.where(sums >= target, digits, 0), axis=0)
        prefix += digit.to(tl.uint32) << shift
    return prefix


@triton.jit
def _cut_kernel(
    logits_ptr, adjusted_ptr, cuts_ptr, rows_ptr, slots_ptr, vocab_size,
    IS_WIDE: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    temperature = _row_float(rows_ptr, slot, 8)
    top_k = _row_value(rows_ptr, slot, 1)
    top_p = _row_float(rows_ptr, slot, 9)
    min_p = _row_float(rows_ptr, slot, 10)
    is_adjusted = _row_value(rows_ptr, slot, 0) != 0
    wait_for_inputs(IS_DEPENDENT)
    if (temperature == 0.0) | ((top_k == 0) & (top_p >= 1.0) & (min_p <= 0.0)):
        tl.store(cuts_ptr + row, 0)
        return
    tops = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        tops = tl.maximum(
            tops,
            _load_logits(
                logits_ptr, adjusted_ptr, row, start + tl.arange(0, BLOCK), vocab_size, is_adjusted
            ),
        )
    best = tl.max(tops, axis=0)
    # bfloat16 logits that were not adjusted differ only in their upper 16 bits.
    num_passes = 8
    if not IS_WIDE:
        if not is_adjusted:
            num_passes = 4
    inverse = 1.0 / temperature
    cut = tl.full((), 0, tl.uint32)
    if top_k > 0:
        cut = _search(
            logits_ptr,
            adjusted_ptr,
            row,
            vocab_size,
            is_adjusted,
            num_passes,
            best,
            inverse,
            cut,
            top_k.to(tl.float32),
            False,
            BLOCK,
        )
    if top_p < 1.0:
        mass = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            x = _load_logits(
                logits_ptr, adjusted_ptr, row, start + tl.arange(0, BLOCK), vocab_size, is_adjusted
            )
            mass += tl.where(_ordered(x) >= cut, tl.exp((x - best) * inverse), 0.0)
        target = top_p * tl.sum(mass, axis=0)
        p_cut = _search(
            logits_ptr,
            adjusted_ptr,
            row,
            vocab_size,
            is_adjusted,
            num_passes,
            best,
            inverse,
            cut,
            target,
            True,
            BLOCK,
        )
        cut = tl.maximum(cut, p_cut)
    if min_p > 0.0:
        cut = tl.maximum(cut, _ordered(best + temperature * tl.log(min_p)))
    tl.store(cuts_ptr + row, cut.to(tl.int32, bitcast=True))


@triton.jit
def _race_kernel(
    logits_ptr, adjusted_ptr, cuts_ptr, rows_ptr, slots_ptr, positions_ptr, best_values_ptr,
    best_tokens_ptr, vocab_size, num_tiles,
    BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.load(slots_ptr + row)
    temperature = _row_float(rows_ptr, slot, 8)
    is_adjusted = _row_value(rows_ptr, slot, 0) != 0
    cut = tl.full((), 0, tl.uint32)
    low = _row_value(rows_ptr, slot, 2).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = _row_value(rows_ptr, slot, 3).to(tl.uint32, bitcast=True).to(tl.uint64)
    position = tl.load(positions_ptr + row).to(tl.uint64)
    seed = (low | (high << 32)) + position * 0x9E3779B97F4A7C15
    wait_for_inputs(IS_DEPENDENT)
    if temperature > 0.0:
        cut = tl.load(cuts_ptr + row).to(tl.uint32, bitcast=True)
    # Philox returns four numbers at a time, so a tile is processed in quarters. Seven rounds pass
    # every test that ten do.
    QUARTER: tl.constexpr = BLOCK // 4
    lane = tl.arange(0, QUARTER)
    first = tile * BLOCK + lane
    x0 = _load_logits(logits_ptr, adjusted_ptr, row, first, vocab_size, is_adjusted)
    x1 = _load_logits(logits_ptr, adjusted_ptr, row, first + QUARTER, vocab_size, is_adjusted)
    x2 = _load_logits(logits_ptr, adjusted_ptr, row, first + 2 * QUARTER, vocab_size, is_adjusted)
    x3 = _load_logits(logits_ptr, adjusted_ptr, row, first + 3 * QUARTER, vocab_size, is_adjusted)
    if temperature > 0.0:
        u0, u1, u2, u3 = tl.rand4x(seed, tile * QUARTER + lane, n_rounds=7)
        inverse = 1.0 / temperature
        x0 = _add_noise(x0, u0, cut, inverse)
        x1 = _add_noise(x1, u1, cut, inverse)
        x2 = _add_noise(x2, u2, cut, inverse)
        x3 = _add_noise(x3, u3, cut, inverse)
    # Left wins ties: a later quarter must be strictly better.
    token = first
    token = tl.where(x1 > x0, first + QUARTER, token)
    x0 = tl.maximum(x0, x1)
    token = tl.where(x2 > x0, first + 2 * QUARTER, token)
    x0 = tl.maximum(x0, x2)
    token = tl.where(x3 > x0, first + 3 * QUARTER, token)
    x0 = tl.maximum(x0, x3)
    value = tl.max(x0, axis=0)
    winner = tl.min(tl.where(x0 == value, token, 2147483647), axis=0)
    tl.store(best_values_ptr + row * num_tiles + tile, value)
    tl.store(best_tokens_ptr + row * num_tiles + tile, winner)


@triton.jit
def _add_noise(x, uniform, cut, inverse_temperature):
    """-log(1 - u) is exact near 0, where the winners are."""
    waiting = tl.where(uniform < 1e-4, uniform, -tl.log(1.0 - uniform))
    noise = -tl.log(tl.maximum(waiting, 1e-30))
    return tl.where(
        (_ordered(x) >= cut) & (x > float("-inf")), x * inverse_temperature + noise, float("-inf")
    )


@triton.jit
def _pick_kernel(
    best_values_ptr, best_tokens_ptr, rows_ptr, slots_ptr, counts_ptr, next_tokens_ptr, out_ptr,
    vocab_size, num_tiles,
    TILES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    flags = _row_value(rows_ptr, slot, 0)
    tiles = tl.arange(0, TILES)
    mask = tiles < num_tiles
    wait_for_inputs(IS_DEPENDENT)
    values = tl.load(best_values_ptr + row * num_tiles + tiles, mask=mask, other=float("-inf"))
    _, winner = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(best_tokens_ptr + row * num_tiles + winner)
    tl.store(out_ptr + row, token)
    tl.store(next_tokens_ptr + slot, token)
    if (flags & 2) != 0:
        count = counts_ptr + slot.to(tl.int64) * vocab_size + token
        tl.store(count, tl.load(count) + 1)


_launch_adjust = Kernel(_adjust_kernel)
_launch_patch = Kernel(_patch_kernel)
_launch_cut = Kernel(_cut_kernel)
_launch_race = Kernel(_race_kernel)
_launch_pick = Kernel(_pick_kernel)


class TritonSampler:
    """Keeps scratch memory for the largest batch, so that graphs find it at a fixed address."""

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        rows, vocab_size, device = table.num_slots + 1, table.vocab_size, table.device
        self._num_tiles = triton.cdiv(vocab_size, RACE_BLOCK)
        self._adjusted = torch.empty((rows, vocab_size), dtype=torch.float32, device=device)
        self._cuts = torch.empty(rows, dtype=torch.int32, device=device)
        self._best_values = torch.empty((rows, self._num_tiles), dtype=torch.float32, device=device)
        self._best_tokens = torch.empty((rows, self._num_tiles), dtype=torch.int32, device=device)

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor, mask_rows: Tensor) -> Tensor:
        table, num_rows, vocab_size = self.table, logits.shape[0], logits.shape[1]
        out = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
        _launch_adjust(
            (num_rows, triton.cdiv(vocab_size, DENSE_BLOCK)),
            (logits, self._adjusted, table.rows, slots, table.counts, table.masks, mask_rows),
            (vocab_size, table.masks.shape[1]),
            BLOCK=DENSE_BLOCK, num_warps=8,
        )  # fmt: skip
        _launch_patch(
            (num_rows,), (self._adjusted, table.rows, slots, positions, table.bias_ids,
                table.bias_values, table.stop_ids), (vocab_size,),
            BIAS_WIDTH=table.bias_ids.shape[1], STOP_WIDTH=table.stop_ids.shape[1],
            STOP_PAD=next_power_of_2(table.stop_ids.shape[1]),
            num_warps=8,
        )  # fmt: skip
        _launch_cut(
            (num_rows,), (logits, self._adjusted, self._cuts, table.rows, slots), (vocab_size,),
            IS_WIDE=logits.dtype != torch.bfloat16, BLOCK=CUT_BLOCK, num_warps=16,
        )  # fmt: skip
        _launch_race(
            (num_rows, self._num_tiles),
            (logits, self._adjusted, self._cuts, table.rows, slots, positions, self._best_values,
                self._best_tokens),
            (vocab_size, self._num_tiles), BLOCK=RACE_BLOCK, num_warps=8,
        )  # fmt: skip
        _launch_pick(
            (num_rows,), (self._best_values, self._best_tokens, table.rows, slots, table.counts,
                table.next_tokens, out),
            (vocab_size, self._num_tiles), TILES=next_power_of_2(self._num_tiles), num_warps=1,
        )  # fmt: skip
        return out
