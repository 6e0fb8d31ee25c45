"""The sampling state of each slot on the device, written when a sequence gets the slot and read by
every later step.

In:  a Sequence, when it is admitted. Out: tensors indexed by slot, for the sampler and for the
     decoder's first layer.
Rule: one int32 row per slot holds everything that each step reads. Lists (bias, stops, counts) are
      separate and rarely used. The last slot belongs to padded rows and stays greedy.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from naiad.llm.parameters import MAX_LOGIT_BIAS, MAX_STOP_TOKENS
from naiad.llm.sequence import Sequence

ROW_WIDTH = 16
FLAGS, TOP_K, SEED_LOW, SEED_HIGH, MIN_POSITION, NUM_BIAS, NUM_STOP = range(7)
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(8, 14)

HAS_BIAS = 1
HAS_PENALTIES = 2
HAS_MIN_LENGTH = 4
HAS_MASK = 8

STOP_WIDTH = MAX_STOP_TOKENS + 16
SEEN_IN_PROMPT = 1 << 14
"""Bit of a count that is set if the token is in the prompt; the lower bits count its occurrences in
the output."""


class SlotTable:
    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        self.device = device
        rows = num_slots + 1
        self.rows = torch.zeros((rows, ROW_WIDTH), dtype=torch.int32, device=device)
        self.next_tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.bias_ids = torch.zeros((rows, MAX_LOGIT_BIAS), dtype=torch.int32, device=device)
        self.bias_values = torch.zeros((rows, MAX_LOGIT_BIAS), dtype=torch.float32, device=device)
        self.stop_ids = torch.zeros((rows, STOP_WIDTH), dtype=torch.int32, device=device)
        self.counts = torch.zeros((rows, vocab_size), dtype=torch.int16, device=device)
        self.masks = torch.zeros((rows, mask_width(vocab_size)), dtype=torch.int32, device=device)

    def pack(self, sequence: Sequence) -> NDArray[np.int32]:
        """Returns the slot's row, and copies the lists that belong to it to the device."""
        parameters = sequence.request.parameters
        row = np.zeros(ROW_WIDTH, np.int32)
        floats = row.view(np.float32)
        row[TOP_K] = max(0, min(parameters.top_k, self.vocab_size))
        row[SEED_LOW : SEED_HIGH + 1] = np.array([sequence.seed], np.uint64).view(np.int32)
        row[MIN_POSITION] = sequence.min_length
        floats[TEMPERATURE] = parameters.temperature
        floats[TOP_P] = parameters.top_p
        floats[MIN_P] = parameters.min_p
        floats[REPETITION] = parameters.repetition_penalty
        floats[PRESENCE] = parameters.presence_penalty
        floats[FREQUENCY] = parameters.frequency_penalty
        row[FLAGS] = self._write_lists(sequence, row)
        return row

    def _write_lists(self, sequence: Sequence, row: NDArray[np.int32]) -> int:
        flags = HAS_MASK if sequence.is_host_bound else 0
        if sequence.logit_bias:
            flags |= HAS_BIAS
            row[NUM_BIAS] = self._put(self.bias_ids, sequence.slot, list(sequence.logit_bias))
            self._put(self.bias_values, sequence.slot, list(sequence.logit_bias.values()))
        if sequence.min_length > sequence.num_prompt_tokens and sequence.stop_token_ids:
            flags |= HAS_MIN_LENGTH
            row[NUM_STOP] = self._put(
                self.stop_ids, sequence.slot, sorted(sequence.stop_token_ids)[:STOP_WIDTH]
            )
        if has_penalties(sequence):
            flags |= HAS_PENALTIES
            self._write_counts(sequence)
        return flags

    def _put(self, table: Tensor, slot: int, values: list[int] | list[float]) -> int:
        host = torch.tensor(values, dtype=table.dtype)
        table[slot, : len(values)].copy_(self._pinned(host), non_blocking=True)
        return len(values)

    def _write_counts(self, sequence: Sequence) -> None:
        counts = np.bincount(
            sequence.tokens[sequence.num_prompt_tokens :], minlength=self.vocab_size
        ).astype(np.int16)
        counts = np.minimum(counts, SEEN_IN_PROMPT - 1)
        counts[np.unique(sequence.tokens[: sequence.num_prompt_tokens])] |= SEEN_IN_PROMPT
        self.counts[sequence.slot].copy_(self._pinned(torch.from_numpy(counts)), non_blocking=True)

    def _pinned(self, host: Tensor) -> Tensor:
        return host.pin_memory() if self.device.type == "cuda" else host


def has_penalties(sequence: Sequence) -> bool:
    parameters = sequence.request.parameters
    return (
        parameters.repetition_penalty != 1.0
        or parameters.presence_penalty != 0.0
        or parameters.frequency_penalty != 0.0
    )


def mask_width(vocab_size: int) -> int:
    return -(-vocab_size // 32)
