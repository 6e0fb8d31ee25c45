"""A StepPlan -> a StepInput: numbers out of Python objects into the packed buffer, and from there to the device in one copy.

Two ways: `stage` takes any plan; `stage_single` fills the fixed places that a captured graph reads, padded to the graph's size.
Rule: nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from naiad.llm.chunk_plan import RECORD_WIDTH, ChunkPlanner
from naiad.llm.packed_staging import PackedStaging, words_for
from naiad.llm.step_input import PromptSegment, StepInput
from naiad.llm.token_scheduler import ScheduledRow, StepPlan

TILE_TOKENS = 64
"""Query tokens per program of the prompt attention."""
UNKNOWN_TOKEN = -1


class StepStager:
    def __init__(self, max_tokens: int, num_slots: int, planner: ChunkPlanner | None, device: torch.device) -> None:
        self._num_slots = num_slots
        self._planner = planner
        self._packed = PackedStaging(8 * max_tokens + 64 * num_slots, device)
        num_chunks = planner.max_chunks(num_slots) if planner is not None else 0
        self._single = PackedStaging(5 * words_for(num_slots) + words_for(num_chunks * RECORD_WIDTH), device)

    def stage(self, plan: StepPlan, mask_rows: dict[int, int]) -> StepInput:
        packed = self._packed
        packed.begin(self._num_words(plan))
        token_ids, device_ids = packed.section(plan.num_tokens)
        positions, device_positions = packed.section(plan.num_tokens)
        slots, device_slots = packed.section(plan.num_tokens)
        segments = _fill_tokens(plan, token_ids, positions, slots)
        step = StepInput(device_ids, device_positions, device_slots, plan.num_single, segments=segments)
        self._stage_sampled(step, plan, mask_rows)
        if self._planner is not None:
            self._stage_chunks(step, slots[: plan.num_single], positions[: plan.num_single])
            self._stage_tiles(step)
        packed.send()
        return step

    def stage_single(self, plan: StepPlan, size: int, mask_rows: dict[int, int]) -> StepInput:
        """Rows beyond the plan's are padding: the spare slot, position 0. Always the same places, whatever the plan."""
        host, step = self._single_sections(size)
        token_ids, positions, slots, sample_positions, masks, records = host
        count = len(plan.rows)
        _fill_singles(plan.rows, token_ids, positions, slots)
        token_ids[count:], positions[count:], slots[count:] = 0, 0, self._num_slots
        np.add(positions, 1, out=sample_positions)
        masks.fill(-1)
        for row, mask_row in mask_rows.items():
            masks[row] = mask_row
        assert self._planner is not None
        self._planner.plan(slots, sample_positions, records)
        self._single.send()
        return step

    def single_step(self, size: int) -> StepInput:
        """For capture: padding only."""
        return self.stage_single(StepPlan(), size, {})

    def _single_sections(self, size: int) -> tuple[list[NDArray[np.int32]], StepInput]:
        """Each section is as long as the largest graph's, so that all graphs read the same places."""
        self._single.begin()
        pairs = [self._single.section(self._num_slots) for _ in range(5)]
        assert self._planner is not None
        records, device_records = self._single.section(self._planner.max_chunks(self._num_slots) * RECORD_WIDTH)
        num_words = self._planner.max_chunks(size) * RECORD_WIDTH
        ids, positions, slots, sample_positions, masks = (tensor[:size] for _, tensor in pairs)
        step = StepInput(
            ids,
            positions,
            slots,
            size,
            chunks=device_records[:num_words].view(-1, RECORD_WIDTH),
            sample_slots=slots,
            sample_positions=sample_positions,
            mask_rows=masks,
        )
        return [*(view[:size] for view, _ in pairs), records[:num_words]], step

    def _num_words(self, plan: StepPlan) -> int:
        num_tiles = sum(-(-row.count // TILE_TOKENS) for row in plan.rows)
        return (
            3 * words_for(plan.num_tokens)
            + 4 * words_for(len(plan.rows))
            + words_for(4 * num_tiles)
            + self._num_record_words(plan.num_single)
        )

    def _num_record_words(self, num_single: int) -> int:
        return 0 if self._planner is None else self._planner.max_chunks(num_single) * RECORD_WIDTH

    def _stage_sampled(self, step: StepInput, plan: StepPlan, mask_rows: dict[int, int]) -> None:
        count = sum(row.is_sampled for row in plan.rows)
        (rows, step.sample_rows), (slots, step.sample_slots), (positions, step.sample_positions), (masks, step.mask_rows) = (
            self._packed.section(count) for _ in range(4)
        )
        index, first = 0, 0
        for row in plan.rows:
            first += row.count
            if row.is_sampled:
                rows[index], slots[index], positions[index] = first - 1, row.sequence.slot, row.start + row.count
                masks[index] = mask_rows.get(index, -1)
                index += 1

    def _stage_chunks(self, step: StepInput, slots: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
        assert self._planner is not None
        records, device_records = self._packed.section(self._planner.max_chunks(step.num_single) * RECORD_WIDTH)
        count = self._planner.plan(slots, positions + 1, records)
        step.chunks = device_records.view(-1, RECORD_WIDTH)[:count]

    def _stage_tiles(self, step: StepInput) -> None:
        """The tiles with the most keys come first, so that the last ones to run are short."""
        tiles = [
            (segment.first_row + at, segment.start + at, min(TILE_TOKENS, segment.count - at), segment.slot)
            for segment in step.segments
            for at in range(0, segment.count, TILE_TOKENS)
        ]
        tiles.sort(key=lambda tile: -tile[1])
        host, device = self._packed.section(4 * len(tiles))
        if tiles:
            host[:] = np.array(tiles, np.int32).ravel()
        step.tiles = device.view(-1, 4)


def _fill_tokens(
    plan: StepPlan, token_ids: NDArray[np.int32], positions: NDArray[np.int32], slots: NDArray[np.int32]
) -> list[PromptSegment]:
    _fill_singles(plan.rows[: plan.num_single], token_ids, positions, slots)
    segments: list[PromptSegment] = []
    at = plan.num_single
    for row in plan.rows[plan.num_single :]:
        sequence, end = row.sequence, at + row.count
        # A prompt row's tokens are all known: only a sequence's last token can be on the device, and that makes a one-token row.
        token_ids[at:end] = sequence.tokens[row.start : row.start + row.count]
        positions[at:end] = np.arange(row.start, row.start + row.count, dtype=np.int32)
        slots[at:end] = sequence.slot
        segments.append(PromptSegment(at, row.count, row.start, sequence.slot))
        at = end
    return segments


def _fill_singles(rows: list[ScheduledRow], token_ids: NDArray[np.int32], positions: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
    count = len(rows)
    if count == 0:
        return
    slots[:count] = [row.sequence.slot for row in rows]
    positions[:count] = [row.start for row in rows]
    token_ids[:count] = [_known_token(row) for row in rows]


def _known_token(row: ScheduledRow) -> int:
    tokens = row.sequence.tokens
    return tokens[row.start] if row.start < len(tokens) else UNKNOWN_TOKEN
