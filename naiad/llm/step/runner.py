"""Runs a StepPlan on the device: stages it, runs the model, samples, and copies the tokens back.

In:  a StepPlan. Out: a LaunchedStep, whose `wait` returns the sampled tokens; until then nothing
     here waits for the device.
Rule: the order of launches on the only stream makes it safe to reuse slots and blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from naiad.errors import NaiadError, internal
from naiad.llm.accelerator import accelerator_of
from naiad.llm.generation import TokenLogprobs
from naiad.llm.sequence import Sequence
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.logprobs import LogprobRows, compute_logprobs
from naiad.llm.step.packed_staging import PackedStaging, words_for
from naiad.llm.step.slot_table import ROW_WIDTH, SlotTable
from naiad.llm.step.step_input import StepInput
from naiad.llm.step.step_stager import StepStager
from naiad.llm.step.token_mask import fill_token_mask
from naiad.llm.token_scheduler import StepPlan


class Model(Protocol):
    def forward(self, step: StepInput, cache: KvCache) -> Tensor: ...


class Sampler(Protocol):
    def sample(
        self, logits: Tensor, slots: Tensor, positions: Tensor, mask_rows: Tensor
    ) -> Tensor: ...


class Graphs(Protocol):
    def run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor] | None:
        """Returns logits and sampled tokens, or None if no captured graph fits the plan."""


class LaunchedStep(msgspec.Struct, eq=False):
    plan: StepPlan
    tokens: Tensor
    """Tokens on the host, valid after `event`."""
    event: torch.cuda.Event | None
    logprobs: LogprobRows | None
    failures: list[tuple[Sequence, NaiadError]]
    scores: LogprobRows | None = None
    """The log-probabilities of prompt tokens, in the order of the plan's rows."""

    def wait(self) -> list[int]:
        if self.event is not None:
            self.event.synchronize()
        tokens: list[int] = self.tokens.tolist()
        return tokens

    def take_scores(self) -> list[tuple[Sequence, int, TokenLogprobs]]:
        """Sequence, position and log-probability of each token of a prompt that was scored."""
        if self.scores is None:
            return []
        places = scored_places(self.plan)
        tokens = [sequence.tokens[at] for sequence, at in places]
        found = self.scores.take(tokens)
        return [(sequence, at, found[i]) for i, (sequence, at) in enumerate(places)]

    def take_logprobs(self, tokens: list[int]) -> dict[int, TokenLogprobs]:
        return self.logprobs.take(tokens) if self.logprobs is not None else {}


class Runner:
    def __init__(
        self,
        model: Model,
        cache: KvCache,
        table: SlotTable,
        sampler: Sampler,
        stager: StepStager,
        graphs: Iterable[Graphs] = (),
    ) -> None:
        self.model = model
        self.cache = cache
        self.table = table
        self.sampler = sampler
        self.stager = stager
        self.graphs = list(graphs)
        self.device = table.device
        self._accelerator = accelerator_of(table.device)
        self._updates = PackedStaging(1024, table.device)
        self._masks = PackedStaging(16, table.device)
        self._thread = 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        failures: list[tuple[Sequence, NaiadError]] = []
        if threading.get_ident() != self._thread:
            self._follow_thread()
        self._update_tables(plan)
        mask_rows = self._stage_masks(plan, failures)
        logits, sampled = self._run(plan, mask_rows)
        return self._read_back(plan, logits, sampled, failures)

    def _follow_thread(self) -> None:
        """Selects the device for this thread. The current device is a property of each thread, and
        an engine may be built on one thread and stepped on another."""
        self._thread = threading.get_ident()
        if not self._accelerator.is_host:
            self._accelerator.select(self.device.index or 0)

    def _run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor]:
        for graphs in self.graphs if not plan.num_scored else ():
            replayed = graphs.run(plan, mask_rows)
            if replayed is not None:
                return replayed
        step = self.stager.stage(plan, mask_rows)
        if not plan.num_scored:
            logits = self.model.forward(step, self.cache)
            return logits, sample_step(self.sampler, logits, step)
        assert step.sample_rows is not None
        scored = torch.tensor(_scored_rows(plan), dtype=torch.int32, device=self.device)
        num_sampled = step.sample_rows.shape[0]
        step.sample_rows = torch.cat([step.sample_rows, scored])
        logits = self.model.forward(step, self.cache)
        return logits, sample_step(self.sampler, logits[:num_sampled], step)

    def _read_back(
        self,
        plan: StepPlan,
        logits: Tensor,
        sampled: Tensor,
        failures: list[tuple[Sequence, NaiadError]],
    ) -> LaunchedStep:
        sampled_rows = [row for row in plan.rows if row.is_sampled]
        wanted = [
            (i, row.sequence.request.parameters.logprobs) for i, row in enumerate(sampled_rows)
        ]
        asked = [(i, count) for i, count in wanted if count is not None]
        logprobs = (
            compute_logprobs(logits, sampled, [i for i, _ in asked], [c for _, c in asked])
            if asked
            else None
        )
        scores = self._scores(plan, logits[len(sampled_rows) :]) if plan.num_scored else None
        if not self._accelerator.has_kernels:
            # Without events the copy waits for the step.
            return LaunchedStep(plan, sampled.cpu(), None, logprobs, failures, scores)
        host = sampled
        if sampled_rows:
            host = torch.empty(len(sampled_rows), dtype=torch.int32, pin_memory=True)
            host.copy_(sampled[: len(sampled_rows)], non_blocking=True)
        # Needed even if nothing was sampled: the staging buffers of a step may be written again
        # only after it has ended (packed_staging.py).
        event = torch.cuda.Event()
        event.record()
        return LaunchedStep(plan, host, event, logprobs, failures, scores)

    def _scores(self, plan: StepPlan, logits: Tensor) -> LogprobRows:
        places = scored_places(plan)
        tokens = torch.tensor([sequence.tokens[at] for sequence, at in places], device=self.device)
        counts = [sequence.request.prompt_logprobs or 0 for sequence, _ in places]
        return compute_logprobs(logits, tokens, list(range(len(places))), counts)

    def _update_tables(self, plan: StepPlan) -> None:
        """Sends the new blocks of running sequences, and the rows of sequences that just got a
        slot."""
        width = self.cache.block_tables.shape[1]
        places: list[int] = []
        blocks: list[int] = []
        for row in plan.rows:
            sequence = row.sequence
            known = sequence.num_staged_blocks
            if known < len(sequence.blocks):
                first = sequence.slot * width
                places += range(first + known, first + len(sequence.blocks))
                blocks += sequence.blocks[known:]
                sequence.num_staged_blocks = len(sequence.blocks)
        rows = [self.table.pack(sequence) for sequence in plan.admitted]
        if not places and not rows:
            return
        self._send_updates(places, blocks, [sequence.slot for sequence in plan.admitted], rows)

    def _send_updates(
        self, places: list[int], blocks: list[int], slots: list[int], rows: list[NDArray[np.int32]]
    ) -> None:
        updates = self._updates
        updates.begin(2 * words_for(len(places)) + 2 * words_for(len(rows) * ROW_WIDTH))
        at, device_at = updates.section(len(places))
        values, device_values = updates.section(len(places))
        at[:], values[:] = places, blocks
        row_at, device_row_at = updates.section(len(rows) * ROW_WIDTH)
        row_values, device_row_values = updates.section(len(rows) * ROW_WIDTH)
        if rows:
            row_at[:] = (
                np.array(slots, np.int32)[:, None] * ROW_WIDTH
                + np.arange(ROW_WIDTH, dtype=np.int32)[None, :]
            ).ravel()
            row_values[:] = np.concatenate(rows)
        updates.send()
        _scatter(self.cache.block_tables, device_at, device_values)
        _scatter(self.table.rows, device_row_at, device_row_values)

    def _stage_masks(
        self, plan: StepPlan, failures: list[tuple[Sequence, NaiadError]]
    ) -> dict[int, int]:
        """Returns sampled row -> row of the mask table. A grammar that raises fails only its own
        request."""
        sampled = [row for row in plan.rows if row.is_sampled]
        bound = [
            (index, row.sequence) for index, row in enumerate(sampled) if row.sequence.is_host_bound
        ]
        if not bound:
            return {}
        width = self.table.masks.shape[1]
        self._masks.begin(words_for(len(bound) * width))
        host, device = self._masks.section(len(bound) * width)
        for line, (_, sequence) in zip(host.reshape(-1, width), bound, strict=True):
            try:
                fill_token_mask(sequence, line)
            except Exception as error:
                line.fill(-1)
                failures.append((sequence, internal(f"the grammar of the request failed: {error}")))
        self._masks.send()
        self.table.masks[: len(bound)].copy_(device.view(-1, width))
        return {index: mask_row for mask_row, (index, _) in enumerate(bound)}


def scored_places(plan: StepPlan) -> list[tuple[Sequence, int]]:
    """The sequence and position of each token whose log-probability is asked for."""
    return [(row.sequence, row.start + at + 1) for row in plan.rows for at in range(row.num_scored)]


def _scored_rows(plan: StepPlan) -> list[int]:
    """The rows of the tokens before them."""
    rows: list[int] = []
    first = 0
    for row in plan.rows:
        rows += range(first, first + row.num_scored)
        first += row.count
    return rows


def sample_step(sampler: Sampler, logits: Tensor, step: StepInput) -> Tensor:
    """Returns the tokens of the sampled rows. A step that cuts a prompt may have none."""
    if logits.shape[0] == 0:
        return torch.empty(0, dtype=torch.int32)
    assert step.sample_slots is not None
    assert step.sample_positions is not None
    assert step.mask_rows is not None
    return sampler.sample(logits, step.sample_slots, step.sample_positions, step.mask_rows)


def _scatter(table: Tensor, at: Tensor, values: Tensor) -> None:
    if at.shape[0]:
        table.view(-1)[at.long()] = values
