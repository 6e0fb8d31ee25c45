"""Samples next tokens from logits in plain PyTorch: the sampler for CPUs, and the reference for the
CUDA sampler.

In:  logits of the sampled rows, their slots, the position of each new token. Out: token ids;
     next_tokens and counts are updated. A row's randomness is one uniform number that depends only
     on its seed and position, so batches and preemptions do not change it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.step import slot_table as columns
from naiad.llm.step.slot_table import SlotTable

_MASK64 = (1 << 64) - 1


class TorchSampler:
    def __init__(self, table: SlotTable) -> None:
        self.table = table

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor, mask_rows: Tensor) -> Tensor:
        logits = logits.float()
        rows = self.table.rows[slots.long()]
        if bool(rows[:, columns.FLAGS].any()):
            logits = self._adjust(
                logits.clone(), rows, slots.tolist(), positions.tolist(), mask_rows.tolist()
            )
        tokens = logits.argmax(dim=-1)
        random = torch.nonzero(rows[:, columns.TEMPERATURE].view(torch.float32) > 0.0).flatten()
        if random.numel():
            tokens[random] = draw(logits[random], rows[random], positions[random])
        self._record(tokens, rows, slots.long())
        return tokens.to(torch.int32)

    def _record(self, tokens: Tensor, rows: Tensor, slots: Tensor) -> None:
        self.table.next_tokens[slots] = tokens.to(torch.int32)
        counted = (rows[:, columns.FLAGS] & columns.HAS_PENALTIES) != 0
        self.table.counts[slots[counted], tokens[counted]] += 1

    def _adjust(
        self,
        logits: Tensor,
        rows: Tensor,
        slots: list[int],
        positions: list[int],
        mask_rows: list[int],
    ) -> Tensor:
        table = self.table
        for index, flags in enumerate(rows[:, columns.FLAGS].tolist()):
            row, slot, line = rows[index], slots[index], logits[index]
            if flags & columns.HAS_PENALTIES:
                penalize(line, table.counts[slot], row[8:].view(torch.float32))
            if flags & columns.HAS_BIAS:
                count = int(row[columns.NUM_BIAS])
                line[table.bias_ids[slot, :count].long()] += table.bias_values[slot, :count]
            if flags & columns.HAS_MIN_LENGTH and positions[index] < int(row[columns.MIN_POSITION]):
                line[table.stop_ids[slot, : int(row[columns.NUM_STOP])].long()] = float("-inf")
            if flags & columns.HAS_MASK and mask_rows[index] >= 0:
                line.masked_fill_(
                    ~unpack_bits(table.masks[mask_rows[index]], line.shape[0]), float("-inf")
                )
        return logits


def penalize(logits: Tensor, counts: Tensor, floats: Tensor) -> None:
    """`floats` is the float half of a slot row."""
    repetition, presence, frequency = (
        floats[c - 8] for c in (columns.REPETITION, columns.PRESENCE, columns.FREQUENCY)
    )
    seen = counts != 0
    output = (counts & (columns.SEEN_IN_PROMPT - 1)).float()
    logits.copy_(
        torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    )
    logits.sub_(output * frequency + (output > 0).float() * presence)


def unpack_bits(words: Tensor, size: int) -> Tensor:
    shifts = torch.arange(32, device=words.device, dtype=torch.int32)
    return ((words[:, None] >> shifts[None, :]) & 1).bool().flatten()[:size]


def draw(logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Sorts once, applies top-k, then top-p to the rest, then min-p, in the order of transformers,
    and inverts the distribution."""
    floats = rows[:, 8:].view(torch.float32)
    temperature, top_p, min_p = (
        floats[:, c - 8, None] for c in (columns.TEMPERATURE, columns.TOP_P, columns.MIN_P)
    )
    # Sorting before dividing keeps ties in the order of the token ids at any temperature.
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    ordered = ordered / temperature
    ranks = torch.arange(ordered.shape[1], device=ordered.device)[None, :]
    top_k = rows[:, columns.TOP_K, None]
    ordered = ordered.masked_fill((top_k > 0) & (ranks >= top_k), float("-inf"))
    weights = torch.softmax(ordered, dim=-1)
    before = weights.cumsum(dim=-1) - weights
    weights = weights.masked_fill((before >= top_p) & (top_p < 1.0), 0.0)
    weights = weights.masked_fill(weights < min_p * weights[:, :1], 0.0)
    sums = weights.double().cumsum(dim=-1)
    seeds = rows[:, columns.SEED_LOW : columns.SEED_HIGH + 1].contiguous().view(torch.int64)[:, 0]
    uniform = torch.tensor(
        [uniform_number(s, p) for s, p in zip(seeds.tolist(), positions.tolist(), strict=True)],
        dtype=torch.float64,
    )
    picked = torch.searchsorted(sums, (uniform * sums[:, -1])[:, None], right=True).clamp_(
        max=logits.shape[1] - 1
    )
    return ids.gather(1, picked)[:, 0]


def uniform_number(seed: int, position: int) -> float:
    """Returns splitmix64 of seed and position as a number in [0, 1)."""
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)
