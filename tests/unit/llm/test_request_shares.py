"""Tests of the share that one client request gets: the rest of its completions wait, and every one
of them has its turn."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tokenizers", reason="needs tokenizers (the llm extra)")

from naiad.llm.block_pool import BlockPool
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.sequence import Sequence, Status
from naiad.llm.sequence_builder import SequenceBuilder
from naiad.llm.token_scheduler import MAX_MATCHED_BLOCKS, TokenScheduler


class Bench:
    def __init__(self, max_num_seqs: int = 8, share: float = 0.5) -> None:
        self.scheduler = TokenScheduler(BlockPool(1000, 4), max_num_seqs, 64, True, share)
        self.num_made = 0

    def add(self, id: str, group: str = "") -> Sequence:
        request = GenerationRequest(
            id=id, prompt=[1, 2, 3], group=group, parameters=SamplingParameters(max_tokens=4)
        )
        sequence = Sequence(request, 0, [1, 2, 3], 7, 0, self.num_made)
        self.num_made += 1
        self.scheduler.add(sequence)
        return sequence

    def running(self) -> list[Sequence]:
        self.scheduler.schedule()
        for sequence in self.scheduler.running:
            sequence.num_pending = 0
        return list(self.scheduler.running)


def test_one_request_gets_half_of_the_slots() -> None:
    bench = Bench()
    ours = [bench.add("big") for _ in range(20)]
    assert bench.running() == ours[:4]
    assert bench.scheduler.num_waiting == 16
    other = bench.add("small")
    assert other in bench.running()


def test_requests_of_a_group_share_one_share() -> None:
    bench = Bench()
    ours = [bench.add(str(index), "prompts") for index in range(20)]
    other = bench.add("other")
    assert bench.running() == [*ours[:4], other]


def test_the_next_one_begins_when_one_ends_and_all_have_their_turn() -> None:
    bench = Bench()
    ours = [bench.add("big") for _ in range(11)]
    order: list[Sequence] = []
    while running := bench.running():
        assert len(running) <= 4
        order.append(running[0])
        bench.scheduler.finish(running[0])
    assert order == ours
    assert bench.scheduler.num_waiting == 0
    assert bench.scheduler.pool.num_used == 0


def test_cancelled_sequences_leave_whether_they_are_held_or_not() -> None:
    bench = Bench()
    ours = [bench.add("big") for _ in range(20)]
    bench.running()
    for sequence in ours[10:]:
        bench.scheduler.finish(sequence)
    assert bench.scheduler.num_waiting == 6
    for sequence in ours[:10]:
        bench.scheduler.finish(sequence)
    assert all(sequence.status is Status.FINISHED for sequence in ours)
    assert bench.scheduler.num_waiting == 0
    assert not bench.scheduler.running
    again = bench.add("big")
    assert bench.running() == [again]


def test_a_small_engine_serves_one_at_a_time() -> None:
    bench = Bench(max_num_seqs=1)
    ours = [bench.add("big") for _ in range(3)]
    assert bench.running() == ours[:1]


def test_completions_with_a_long_cached_prompt_start_over_several_steps() -> None:
    """Matching a prompt of 30,000 tokens for 127 completions in one step took half a second."""
    builder = SequenceBuilder(None, 50_000, [0], 40_000)
    scheduler = TokenScheduler(BlockPool(20_000, 16), 256, 8192, True, 0.5)
    request = GenerationRequest(
        id="long",
        prompt=[index % 5000 for index in range(30_000)],
        parameters=SamplingParameters(n=128, max_tokens=10),
        should_detokenize=False,
    )
    sequences = builder.build(request, 0, random.Random(1))
    for sequence in sequences:
        scheduler.add(sequence)
    num_admitted = []
    while len(scheduler.running) < 128:
        plan = scheduler.schedule()
        num_admitted.append(len(plan.admitted))
        for row in plan.rows:
            row.sequence.num_pending = 0
    assert max(num_admitted) <= 1 + MAX_MATCHED_BLOCKS * 16 // 30_000 + 1
    assert all(
        sequence.block_hashes[:1875] == sequences[0].block_hashes[:1875] for sequence in sequences
    )
    lists = {id(sequence.tokens) for sequence in sequences}
    assert len(lists) == 128
