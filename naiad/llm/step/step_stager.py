"""Turns a StepPlan into a StepInput: writes its numbers into the packed buffer and sends them to
the device in one copy.

`stage` accepts any plan. `stage_single` and `stage_padded` fill the fixed addresses that a captured
graph reads, padded to the graph's size: the former for steps of one-token rows alone, the latter
for steps with prompts.
Rule: nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from naiad.llm.step.chunk_plan import RECORD_WIDTH, ChunkPlanner, is_short
from naiad.llm.step.packed_staging import PackedStaging, words_for
from naiad.llm.step.step_input import PromptSegment, StepInput
from naiad.llm.token_scheduler import ScheduledRow, StepPlan

TILE_TOKENS = 64
"""Query tokens per program of the prompt attention."""
TOKENS_PER_TILE = 16
"""A captured step has room for one tile per this many tokens. A plan whose prompts are shorter on
average does not fit."""
UNKNOWN_TOKEN = -1


class StepStager:
    def __init__(
        self,
        max_tokens: int,
        num_slots: int,
        planner: ChunkPlanner | None,
        device: torch.device,
        max_padded_tokens: int = 0,
    ) -> None:
        """`max_padded_tokens` is the largest size that is passed to `stage_padded`."""
        self._num_slots = num_slots
        self._planner = planner
        self._packed = PackedStaging(8 * max_tokens + 64 * num_slots, device)
        num_chunks = planner.max_chunks(num_slots) if planner is not None else 0
        self._single = PackedStaging(
            5 * words_for(num_slots) + words_for(num_chunks * RECORD_WIDTH), device
        )
        self._padded = PackedStaging(self._num_padded_words(max_padded_tokens), device)

    def stage(self, plan: StepPlan, mask_rows: dict[int, int]) -> StepInput:
        packed = self._packed
        packed.begin(self._num_words(plan))
        token_ids, device_ids = packed.section(plan.num_tokens)
        positions, device_positions = packed.section(plan.num_tokens)
        slots, device_slots = packed.section(plan.num_tokens)
        segments = _fill_tokens(plan, token_ids, positions, slots)
        step = StepInput(
            device_ids, device_positions, device_slots, plan.num_single, segments=segments
        )
        _stage_sampled(packed, step, plan, mask_rows)
        if self._planner is not None:
            self._stage_chunks(step, slots[: plan.num_single], positions[: plan.num_single])
            tiles = _tiles(segments)
            host, device = packed.section(4 * len(tiles))
            _fill_tiles(host, tiles)
            step.tiles = device.view(-1, 4)
        packed.send()
        return step

    def stage_padded(self, plan: StepPlan, size: int, mask_rows: dict[int, int]) -> StepInput:
        """`size` must be at least `padded_size` of the plan. The padding is one-token rows of the
        spare slot, between the plan's one-token rows and its prompts.

        A graph of `size` reads everything before the sampled rows; the head and the sampler read
        those after the graph has run.
        """
        assert self._planner is not None
        num_padding = size - plan.num_tokens
        num_single = plan.num_single + num_padding
        packed = self._padded
        packed.begin()
        (token_ids, device_ids), (positions, device_positions), (slots, device_slots) = (
            packed.section(size) for _ in range(3)
        )
        segments = _fill_tokens(plan, token_ids, positions, slots, num_padding)
        padding = slice(plan.num_single, num_single)
        token_ids[padding], positions[padding], slots[padding] = 0, 0, self._num_slots
        records, device_records = packed.section(self._planner.max_chunks(size) * RECORD_WIDTH)
        self._planner.plan(slots[:num_single], positions[:num_single] + 1, records)
        host, device_tiles = packed.section(4 * (size // TOKENS_PER_TILE))
        _fill_tiles(host, _tiles(segments))
        step = StepInput(device_ids, device_positions, device_slots, num_single, segments)
        step.chunks, step.tiles = device_records.view(-1, RECORD_WIDTH), device_tiles.view(-1, 4)
        _stage_sampled(packed, step, plan, mask_rows, num_padding)
        packed.send()
        return step

    def padded_step(self, size: int) -> StepInput:
        """Returns a step for capture. It is padding, but has a prompt segment, so that the kernels
        of prompts are captured.

        It is marked `is_short`, because smaller tiles lose less where they are wrong.
        """
        step = self.stage_padded(StepPlan(), size, {})
        step.is_short = True
        step.segments = [PromptSegment(0, 0, 0, self._num_slots)]
        return step

    def stage_single(self, plan: StepPlan, size: int, mask_rows: dict[int, int]) -> StepInput:
        """Pads the plan's rows with rows of the spare slot at position 0. The addresses are the
        same for every plan."""
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
        step.is_short = is_short(sample_positions[:count]) if count else True
        self._single.send()
        return step

    def single_step(self, size: int) -> StepInput:
        """Returns a step of padding, for capture."""
        return self.stage_single(StepPlan(), size, {})

    def _single_sections(self, size: int) -> tuple[list[NDArray[np.int32]], StepInput]:
        """Makes each section as long as the largest graph's, so that all graphs read the same
        addresses."""
        self._single.begin()
        pairs = [self._single.section(self._num_slots) for _ in range(5)]
        assert self._planner is not None
        records, device_records = self._single.section(
            self._planner.max_chunks(self._num_slots) * RECORD_WIDTH
        )
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

    def _stage_chunks(
        self, step: StepInput, slots: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> None:
        assert self._planner is not None
        records, device_records = self._packed.section(
            self._planner.max_chunks(step.num_single) * RECORD_WIDTH
        )
        lengths = positions + 1
        count = self._planner.plan(slots, lengths, records)
        step.chunks = device_records.view(-1, RECORD_WIDTH)[:count]
        step.is_short = is_short(lengths)

    def _num_padded_words(self, size: int) -> int:
        if self._planner is None or size == 0:
            return 0
        return (
            3 * words_for(size)
            + words_for(self._planner.max_chunks(size) * RECORD_WIDTH)
            + words_for(4 * (size // TOKENS_PER_TILE))
            + 4 * words_for(self._num_slots)
        )


def padded_size(plan: StepPlan) -> int:
    """Returns the smallest size that has room for the plan's tokens and tiles, and for one row of
    padding if the plan has only prompts.

    A captured step always launches the attention of one-token rows. If the step had no such rows,
    no program of that kernel would wait for the kernel before it (kernels/launch.py), and the
    prompts' attention after it could begin before their keys are stored.
    """
    num_tiles = sum(-(-row.count // TILE_TOKENS) for row in plan.rows[plan.num_single :])
    return max(plan.num_tokens + (plan.num_single == 0), num_tiles * TOKENS_PER_TILE)


def _stage_sampled(
    packed: PackedStaging,
    step: StepInput,
    plan: StepPlan,
    mask_rows: dict[int, int],
    num_padding: int = 0,
) -> None:
    count = sum(row.is_sampled for row in plan.rows)
    (
        (rows, step.sample_rows),
        (slots, step.sample_slots),
        (positions, step.sample_positions),
        (masks, step.mask_rows),
    ) = (packed.section(count) for _ in range(4))
    index, end = 0, 0
    for number, row in enumerate(plan.rows):
        end += row.count
        if row.is_sampled:
            rows[index] = end - 1 if number < plan.num_single else end - 1 + num_padding
            slots[index], positions[index] = row.sequence.slot, row.start + row.count
            masks[index] = mask_rows.get(index, -1)
            index += 1


def _tiles(segments: list[PromptSegment]) -> list[tuple[int, int, int, int]]:
    """The tiles with the most keys come first, so that the last ones to run are short."""
    tiles = [
        (
            segment.first_row + at,
            segment.start + at,
            min(TILE_TOKENS, segment.count - at),
            segment.slot,
        )
        for segment in segments
        for at in range(0, segment.count, TILE_TOKENS)
    ]
    tiles.sort(key=lambda tile: -tile[1])
    return tiles


def _fill_tiles(host: NDArray[np.int32], tiles: list[tuple[int, int, int, int]]) -> None:
    """Fills the rest of `host` with tiles of no tokens, whose programs end at once."""
    if tiles:
        host[: 4 * len(tiles)] = np.array(tiles, np.int32).ravel()
    host[4 * len(tiles) :] = 0


def _fill_tokens(
    plan: StepPlan,
    token_ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    slots: NDArray[np.int32],
    num_padding: int = 0,
) -> list[PromptSegment]:
    _fill_singles(plan.rows[: plan.num_single], token_ids, positions, slots)
    segments: list[PromptSegment] = []
    first = plan.num_single + num_padding
    for row in plan.rows[plan.num_single :]:
        sequence, end = row.sequence, first + row.count
        # A prompt row's tokens are all known: only a sequence's last token can be on the device,
        # and that makes a one-token row.
        token_ids[first:end] = sequence.tokens[row.start : row.start + row.count]
        positions[first:end] = np.arange(row.start, row.start + row.count, dtype=np.int32)
        slots[first:end] = sequence.slot
        segments.append(PromptSegment(first, row.count, row.start, sequence.slot))
        first = end
    return segments


def _fill_singles(
    rows: list[ScheduledRow],
    token_ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> None:
    count = len(rows)
    if count == 0:
        return
    slots[:count] = [row.sequence.slot for row in rows]
    positions[:count] = [row.start for row in rows]
    token_ids[:count] = [_known_token(row) for row in rows]


def _known_token(row: ScheduledRow) -> int:
    tokens = row.sequence.tokens
    return tokens[row.start] if row.start < len(tokens) else UNKNOWN_TOKEN
