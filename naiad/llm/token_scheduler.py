"""Plans the next step: every running sequence computes its uncomputed tokens, within one token
budget.

There are no prefill and decode phases: a sequence that generates has one uncomputed token, a new
one has its prompt, and a long prompt is cut where the budget ends. One-token rows come first and
are never delayed by prompts: while there are any, only as many tokens of prompts are computed as
fit the maximum delay (naiad.llm.prefill_pace). When blocks run out, the sequence that is served
last releases all of its blocks and is computed again later. API keys take turns: a key that runs
nothing gets the place of a sequence of the key that runs most.

In:  sequences from Engine.submit. Out: a StepPlan for the runner.
Rule: only this file moves a sequence between waiting and running, and only this file holds blocks
      and slots.
"""

from __future__ import annotations

from bisect import insort

import msgspec

from naiad.llm.block_pool import BlockPool
from naiad.llm.prefill_pace import PrefillPace
from naiad.llm.request_shares import RequestShares
from naiad.llm.sequence import NO_SLOT, Sequence, Status
from naiad.llm.waiting_queue import WaitingQueue

MAX_MATCHED_BLOCKS = 8192
"""Admissions of one step stop after this many cached blocks, which take a few milliseconds."""


MAX_SCORED_TOKENS = 256
"""A step computes so many log-probabilities of prompts at most: each needs the logits of the whole
vocabulary."""


class ScheduledRow(msgspec.Struct, eq=False):
    sequence: Sequence
    start: int
    """Position of the row's first token."""
    count: int
    is_sampled: bool
    """True if the row reaches the sequence's end, so that a next token is sampled."""
    num_scored: int = 0
    """The log-probabilities of the tokens that follow the row's first so many are asked for."""


class StepPlan(msgspec.Struct, eq=False):
    rows: list[ScheduledRow] = msgspec.field(default_factory=list)
    """One-token rows first, then prompts. A prompt that is cut to one token stays among the
    prompts."""
    num_single: int = 0
    num_tokens: int = 0
    num_scored: int = 0
    admitted: list[Sequence] = msgspec.field(default_factory=list)
    """Sequences that got a slot in this step; the runner initializes the slots."""


class TokenScheduler:
    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
        max_request_share: float = 1.0,
        max_token_delay_ms: float = 0.0,
    ) -> None:
        self.pool = pool
        self.pace = PrefillPace(max_token_delay_ms)
        self._shares: RequestShares[Sequence] = RequestShares(
            max(1, int(max_num_seqs * max_request_share))
        )
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_prefix_caching = enable_prefix_caching
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.num_host_bound = 0
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._num_scorable = MAX_SCORED_TOKENS
        """What is left of it in the step that is planned."""
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + self._shares.num_held

    def has_room(self, key_id: str, count: int, limit: int) -> bool:
        """True if `count` more sequences of the key may wait, besides those that are held back
        because their request has its share already."""
        return self.waiting.has_room(key_id, count, limit - self._shares.num_held)

    def add(self, sequence: Sequence) -> None:
        self.num_host_bound += sequence.is_host_bound
        if self._shares.admit(sequence):
            self.waiting.push(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Releases everything that the sequence holds. This is safe with a step in flight, because
        later steps run after it on the same device stream."""
        if sequence.status is Status.FINISHED:
            return
        self.num_host_bound -= sequence.is_host_bound
        if self._shares.drop_held(sequence):
            sequence.status = Status.FINISHED
            return
        if sequence.status is Status.RUNNING:
            self._stop_running(sequence)
        else:
            self.waiting.drop(sequence)
        sequence.status = Status.FINISHED
        following = self._shares.release(sequence)
        if following is not None:
            self.waiting.push(following)

    def schedule(self) -> StepPlan:
        singles: list[Sequence] = []
        prompts: list[tuple[Sequence, int]] = []
        admitted: list[Sequence] = []
        self._make_way()
        self._num_scorable = MAX_SCORED_TOKENS
        num_preemptions = self.num_preemptions
        budget = self._plan_singles(singles, self.max_num_batched_tokens)
        if singles:
            budget = self.pace.max_tokens(budget)
        if len(singles) < len(self.running):
            budget = self._plan_prompts(singles, prompts, budget)
        if self.num_preemptions == num_preemptions:
            self._admit(singles, prompts, admitted, budget)
        return self._commit(singles, prompts, admitted)

    def preempt(self, sequence: Sequence) -> None:
        """Makes the sequence wait again. If a token of it is still on the device, it is appended
        when it arrives and computed again with the rest."""
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        self.waiting.push(sequence)
        self.num_preemptions += 1

    def _make_way(self) -> None:
        """Preempts a sequence of the key that runs most if another key waits, runs nothing, and
        lacks a slot or blocks. The blocks' content stays in the prefix cache for a while, so that
        the sequence usually goes on where it stopped."""
        if not len(self.waiting) or not self.running:
            return
        sequence = self.waiting.deprived()
        if sequence is None or (self._free_slots and self._has_blocks_for(sequence)):
            return
        key_id = self.waiting.largest_key(self.waiting.share_of(sequence).served)
        if key_id is not None:
            self.preempt(
                next(other for other in reversed(self.running) if other.request.key_id == key_id)
            )

    def _has_blocks_for(self, sequence: Sequence) -> bool:
        count = min(len(sequence.tokens), self.max_num_batched_tokens)
        need = -(-count // self.pool.block_size) + len(self.running)
        return self.pool.num_free >= need

    def _plan_singles(self, singles: list[Sequence], budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            index += 1
            if sequence.num_uncomputed == 1 and self._make_room(sequence, 1, singles, []):
                singles.append(sequence)
                budget -= 1
        return budget

    def _plan_prompts(
        self, singles: list[Sequence], prompts: list[tuple[Sequence, int]], budget: int
    ) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            index += 1
            count = self._scorable(sequence, min(sequence.num_uncomputed, budget))
            if (
                sequence.num_uncomputed > 1
                and count
                and self._make_room(sequence, count, singles, prompts)
            ):
                prompts.append((sequence, count))
                budget -= count
                self._num_scorable -= count * sequence.is_scored
        return budget

    def _scorable(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` tokens fit what a step may score."""
        return min(count, self._num_scorable) if sequence.is_scored else count

    def _make_room(
        self,
        sequence: Sequence,
        count: int,
        singles: list[Sequence],
        prompts: list[tuple[Sequence, int]],
    ) -> bool:
        """Allocates blocks for `count` more tokens. Returns False if the sequence itself was
        preempted."""
        pool = self.pool
        need = -(-(sequence.num_computed + count) // pool.block_size) - len(sequence.blocks)
        if need <= 0:
            return True
        while pool.num_free < need:
            victim = self.running[-1]
            self.preempt(victim)
            if victim in singles:
                singles.remove(victim)
            prompts[:] = [planned for planned in prompts if planned[0] is not victim]
            if victim is sequence:
                return False
        sequence.blocks += pool.allocate(need)
        return True

    def _admit(
        self,
        singles: list[Sequence],
        prompts: list[tuple[Sequence, int]],
        admitted: list[Sequence],
        budget: int,
    ) -> None:
        num_matched = 0
        while budget > 0 and self._free_slots and num_matched < MAX_MATCHED_BLOCKS:
            sequence = self.waiting.peek()
            if sequence is None or sequence.num_pending > 0:
                return
            matched = self._match_prefix(sequence)
            num_matched += len(matched)
            num_cached = len(matched) * self.pool.block_size
            count = self._scorable(sequence, min(len(sequence.tokens) - num_cached, budget))
            if not count:
                return
            need = -(-(num_cached + count) // self.pool.block_size) - len(matched)
            # Each running sequence soon needs another block; without this reserve an admission
            # causes a preemption in the next step.
            if self.pool.num_free_without(matched) < need + len(self.running):
                return
            self.waiting.pop(sequence)
            self._start(sequence, matched, need)
            admitted.append(sequence)
            budget -= count
            self._num_scorable -= count * sequence.is_scored
            if count == 1:
                singles.append(sequence)
            else:
                prompts.append((sequence, count))
            # Other sequences may share these blocks in the same step, because each layer stores all
            # keys and values before any row attends.
            self._remember(sequence, num_cached + count)

    def _match_prefix(self, sequence: Sequence) -> list[int]:
        """Never matches the whole sequence: its last token must be computed to get logits."""
        if not self.enable_prefix_caching or sequence.is_scored:
            return []
        return self.pool.match(
            sequence.hash_full_blocks(len(sequence.tokens) - 1, self.pool.block_size)
        )

    def _start(self, sequence: Sequence, matched: list[int], need: int) -> None:
        if not sequence.num_output_tokens:
            sequence.tokens = list(sequence.tokens)
        self.pool.acquire(matched)
        sequence.blocks = matched + self.pool.allocate(need)
        sequence.num_computed = len(matched) * self.pool.block_size
        sequence.num_remembered = len(matched)
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed)
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = sequence.num_computed
            self.num_prefix_queries += len(sequence.tokens)
            self.num_prefix_hits += sequence.num_computed
        sequence.slot = self._free_slots.pop()
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda other: other.rank)

    def _commit(
        self, singles: list[Sequence], prompts: list[tuple[Sequence, int]], admitted: list[Sequence]
    ) -> StepPlan:
        plan = StepPlan(admitted=admitted, num_single=len(singles))
        for sequence in singles:
            self._advance(plan, sequence, 1)
        for sequence, count in prompts:
            self._advance(plan, sequence, count)
        return plan

    def _advance(self, plan: StepPlan, sequence: Sequence, count: int) -> None:
        start = sequence.num_computed
        sequence.num_computed = end = start + count
        self.waiting.charge(sequence, end)
        is_sampled = end == len(sequence.tokens) + sequence.num_pending
        if is_sampled:
            sequence.num_pending += 1
        num_scored = (
            max(0, min(end, sequence.num_prompt_tokens - 1) - start) if sequence.is_scored else 0
        )
        plan.rows.append(ScheduledRow(sequence, start, count, is_sampled, num_scored))
        plan.num_tokens += count
        plan.num_scored += num_scored
        if end // self.pool.block_size > sequence.num_remembered:
            self._remember(sequence, end)

    def _remember(self, sequence: Sequence, num_computed: int) -> None:
        """Makes full blocks whose tokens the host knows available for prefix matches."""
        if not self.enable_prefix_caching:
            return
        hashes = sequence.hash_full_blocks(
            min(num_computed, len(sequence.tokens)), self.pool.block_size
        )
        pool, first = self.pool, sequence.num_remembered
        new = [
            index
            for index in range(first, len(hashes))
            if pool.remember(sequence.blocks[index], hashes[index])
        ]
        if new and pool.events is not None:
            self._report(sequence, hashes, new)
        sequence.num_remembered = max(sequence.num_remembered, len(hashes))

    def _report(self, sequence: Sequence, hashes: list[bytes], new: list[int]) -> None:
        """Tells what the blocks `new` of the sequence hold, as runs of blocks that follow each
        other."""
        events, size = self.pool.events, self.pool.block_size
        assert events is not None
        start = 0
        for end in range(1, len(new) + 1):
            if end < len(new) and new[end] == new[end - 1] + 1:
                continue
            first, last = new[start], new[end - 1]
            events.stored(
                hashes[first : last + 1],
                hashes[first - 1] if first else None,
                sequence.tokens[first * size : (last + 1) * size],
                sequence.request.cache_salt,
                sequence.request.cache_owner,
            )
            start = end

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.waiting.stop_running(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT
        sequence.blocks = []
        sequence.num_computed = 0
        sequence.num_remembered = 0
        sequence.num_staged_blocks = 0
