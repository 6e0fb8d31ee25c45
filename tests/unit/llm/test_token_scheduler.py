"""Tests of the token scheduler's plans without a model: budgets, order, preemption, prefix
reuse."""

from __future__ import annotations

import random

import pytest

from naiad.llm.block_pool import BlockPool
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.sequence import Sequence, Status
from naiad.llm.token_scheduler import StepPlan, TokenScheduler


class Bench:
    """A scheduler, sequences with unique tokens, and a stand-in for the device that gives each
    sampled row a token."""

    def __init__(
        self,
        num_blocks: int = 100,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 16,
        caching: bool = True,
    ) -> None:
        self.scheduler = TokenScheduler(
            BlockPool(num_blocks + 1, block_size), max_num_seqs, budget, caching
        )
        self.num_made = 0

    def add(
        self,
        prompt: list[int] | int,
        max_tokens: int = 4,
        priority: int = 0,
        key_id: str = "",
        key_weight: int = 1,
    ) -> Sequence:
        tokens = (
            prompt
            if isinstance(prompt, list)
            else [1000 * self.num_made + i for i in range(prompt)]
        )
        request = GenerationRequest(
            id=str(self.num_made),
            prompt=tokens,
            priority=priority,
            key_id=key_id,
            key_weight=key_weight,
            cache_owner=key_id,
            parameters=SamplingParameters(max_tokens=max_tokens),
        )
        sequence = Sequence(request, 0, tokens, len(tokens) + max_tokens, 0, self.num_made)
        self.num_made += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.check(plan)
        for row in plan.rows:
            if row.is_sampled:
                row.sequence.num_pending -= 1
                row.sequence.tokens.append(len(row.sequence.tokens))
                if len(row.sequence.tokens) >= row.sequence.max_length:
                    self.scheduler.finish(row.sequence)
        return plan

    def check(self, plan: StepPlan) -> None:
        assert (
            sum(row.count for row in plan.rows)
            == plan.num_tokens
            <= self.scheduler.max_num_batched_tokens
        )
        assert all(row.count == 1 for row in plan.rows[: plan.num_single])
        slots = [sequence.slot for sequence in self.scheduler.running]
        assert len(set(slots)) == len(slots)
        size = self.scheduler.pool.block_size
        for row in plan.rows:
            assert row.sequence.status is Status.RUNNING
            assert len(row.sequence.blocks) >= -(-(row.start + row.count) // size)

    def run(self) -> list[StepPlan]:
        plans = []
        while self.scheduler.running or len(self.scheduler.waiting):
            plans.append(self.step())
            assert plans[-1].rows, "the scheduler is stuck"
        assert self.scheduler.pool.num_used == 0
        return plans


def counts(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(row.sequence.request.id, row.start, row.count) for row in plan.rows]


def test_a_long_prompt_is_cut_where_the_budget_ends() -> None:
    bench = Bench(budget=16)
    bench.add(40, max_tokens=2)
    plans = bench.run()
    assert [counts(plan) for plan in plans] == [
        [("0", 0, 16)],
        [("0", 16, 16)],
        [("0", 32, 8)],
        [("0", 40, 1)],
    ]
    assert [[row.is_sampled for row in plan.rows] for plan in plans] == [
        [False],
        [False],
        [True],
        [True],
    ]


def test_schedules_generating_sequences_before_prompts() -> None:
    bench = Bench(budget=16)
    first = bench.add(4, max_tokens=20)
    bench.step()
    bench.add(60)
    plan = bench.step()
    assert counts(plan) == [("0", 4, 1), ("1", 0, 15)]
    plan = bench.step()
    assert counts(plan) == [("0", 5, 1), ("1", 15, 15)]
    assert first.num_output_tokens == 3


def test_better_priority_is_admitted_first() -> None:
    bench = Bench(budget=8, max_num_seqs=1)
    bench.add(4, priority=5)
    bench.add(4, priority=1)
    bench.add(4, priority=1)
    order = list(
        dict.fromkeys(row.sequence.request.id for plan in bench.run() for row in plan.rows)
    )
    assert order == ["1", "2", "0"]


def test_preempts_the_lowest_rank_and_restores_it() -> None:
    bench = Bench(num_blocks=9, block_size=4, budget=64, caching=False)
    first, second = bench.add(12, max_tokens=12), bench.add(12, max_tokens=12)
    plans = bench.run()
    assert bench.scheduler.num_preemptions > 0
    again = [
        counts(plan)
        for plan in plans
        if any(row.sequence is second and row.count > 12 for row in plan.rows)
    ]
    assert again, "the second sequence should have been computed again, with what it had generated"
    assert len(first.tokens) == len(second.tokens) == 24
    assert not any(
        row.sequence is first and row.count > 1 for plan in plans[1:] for row in plan.rows
    )


def test_a_preempted_sequence_waits_for_its_token_on_the_device() -> None:
    bench = Bench(num_blocks=8, block_size=4, budget=64)
    sequence = bench.add(4, max_tokens=8)
    plan = bench.scheduler.schedule()
    assert plan.rows[0].is_sampled
    bench.scheduler.preempt(sequence)
    assert not bench.scheduler.schedule().rows
    sequence.num_pending -= 1
    sequence.tokens.append(99)
    assert counts(bench.scheduler.schedule()) == [("0", 4, 1)], (
        "the prompt's block is still known by its content"
    )


def test_computes_a_shared_prefix_once_even_within_a_step() -> None:
    bench = Bench(budget=64, block_size=4)
    shared = list(range(500, 511))
    bench.add([*shared, 1])
    bench.add([*shared, 2])
    plan = bench.step()
    assert counts(plan) == [("0", 0, 12), ("1", 8, 4)]
    assert bench.scheduler.running[0].blocks[:2] == bench.scheduler.running[1].blocks[:2]
    bench.run()


def test_a_whole_hit_still_computes_the_last_token() -> None:
    bench = Bench(budget=64, block_size=4)
    bench.add([*range(8)], max_tokens=1)
    bench.run()
    bench.add([*range(8)], max_tokens=1)
    assert counts(bench.step()) == [("1", 4, 4)]
    assert bench.scheduler.num_prefix_hits == 4


def test_salted_prompts_are_not_shared() -> None:
    bench = Bench(budget=64, block_size=4)
    for salt in ("", "a"):
        sequence = bench.add([*range(9)], max_tokens=1)
        sequence.request.cache_salt = salt
    assert counts(bench.step()) == [("0", 0, 9), ("1", 0, 9)]


@pytest.mark.parametrize("seed", range(30))
def test_random_loads_always_finish(seed: int) -> None:
    source = random.Random(seed)
    bench = Bench(
        num_blocks=source.randint(12, 40),
        block_size=source.choice([1, 4, 16]),
        max_num_seqs=source.randint(1, 6),
        budget=source.randint(1, 40),
    )
    capacity = bench.scheduler.pool.capacity * bench.scheduler.pool.block_size
    sequences = []
    for _ in range(25):
        prompt = source.randint(1, min(60, capacity - 2))
        sequences.append(
            bench.add(
                prompt,
                max_tokens=source.randint(1, min(30, capacity - prompt)),
                priority=source.choice([0, 0, 1]),
            )
        )
        if source.random() < 0.3:
            bench.step()
        if source.random() < 0.15:
            bench.scheduler.finish(source.choice(sequences))
    bench.run()
    assert len(bench.scheduler._free_slots) == len({*bench.scheduler._free_slots})


def steps_until_admitted(bench: Bench, sequence: Sequence) -> int:
    num_steps = 0
    while sequence.num_cached_tokens < 0:
        bench.step()
        num_steps += 1
        assert num_steps < 1000
    return num_steps


def test_a_flood_of_one_key_does_not_delay_another() -> None:
    bench = Bench(num_blocks=400, max_num_seqs=4)
    for _ in range(64):
        bench.add(4, max_tokens=50, key_id="a")
    for _ in range(5):
        bench.step()
    for _ in range(5):
        one = bench.add(4, max_tokens=3, key_id="b")
        assert steps_until_admitted(bench, one) <= 2
        while one.status is not Status.FINISHED:
            bench.step()
    bench.run()


def test_a_key_gets_blocks_that_another_one_holds() -> None:
    bench = Bench(num_blocks=24, max_num_seqs=8, budget=32)
    for _ in range(8):
        bench.add(8, max_tokens=24, key_id="a")
    for _ in range(3):
        bench.step()
    one = bench.add(16, max_tokens=3, key_id="b")
    assert steps_until_admitted(bench, one) <= 6
    bench.run()


def test_keys_share_by_weight_counted_in_tokens() -> None:
    bench = Bench(num_blocks=1000, max_num_seqs=1, budget=64)
    for _ in range(200):
        bench.add(4, max_tokens=4, key_id="small")
    for _ in range(40):
        bench.add(20, max_tokens=20, key_id="large")
    for _ in range(80):
        bench.add(20, max_tokens=20, key_id="heavy", key_weight=3)
    computed = dict.fromkeys(("small", "large", "heavy"), 0)
    for _ in range(1000):
        for row in bench.step().rows:
            computed[row.sequence.request.key_id] += row.count
    assert computed["large"] == pytest.approx(computed["small"], rel=0.1)
    assert computed["heavy"] == pytest.approx(3 * computed["small"], rel=0.1)


def test_a_key_that_was_idle_has_no_credit() -> None:
    bench = Bench(num_blocks=400, max_num_seqs=1)
    for _ in range(50):
        bench.add(4, key_id="a")
    for _ in range(100):
        bench.step()
    for _ in range(50):
        bench.add(4, key_id="b")
    computed = dict.fromkeys(("a", "b"), 0)
    for _ in range(40):
        for row in bench.step().rows:
            computed[row.sequence.request.key_id] += row.count
    assert computed["b"] == pytest.approx(computed["a"], abs=8)


def test_priority_orders_only_the_requests_of_one_key() -> None:
    bench = Bench(max_num_seqs=1)
    for _ in range(10):
        bench.add(4, priority=-100, key_id="a")
    bench.step()
    low, high = bench.add(4, priority=5, key_id="b"), bench.add(4, priority=1, key_id="b")
    assert steps_until_admitted(bench, high) <= 6
    assert low.num_cached_tokens < 0
    bench.run()


def test_cancelled_sequences_of_several_keys_leave_nothing_behind() -> None:
    bench = Bench(max_num_seqs=2)
    kept = [bench.add(4, key_id=key) for key in "abc"]
    gone = [bench.add(4, key_id=key) for key in "abcd" for _ in range(5)]
    for sequence in gone:
        bench.scheduler.finish(sequence)
    bench.run()
    assert all(sequence.status is Status.FINISHED for sequence in kept)
    assert len(bench.scheduler.waiting) == 0
    assert bench.scheduler.waiting.peek() is None


def test_keys_do_not_share_prefixes() -> None:
    bench = Bench()
    prompt = list(range(12))
    first, other, own = (bench.add(prompt, key_id=key) for key in ("a", "b", "a"))
    bench.run()
    assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert own.num_cached_tokens == 8


def test_a_full_queue_has_room_for_another_key() -> None:
    bench = Bench()
    waiting = bench.scheduler.waiting
    for _ in range(10):
        bench.add(4, key_id="a")
    assert not waiting.has_room("a", 1, 10)
    assert waiting.has_room("b", 5, 10)
    assert not waiting.has_room("b", 6, 10)
    for _ in range(5):
        bench.add(4, key_id="b")
    assert not waiting.has_room("b", 1, 10)
    assert waiting.has_room("c", 3, 10)


def test_without_keys_a_full_queue_is_full() -> None:
    bench = Bench()
    for _ in range(3):
        bench.add(4)
    assert not bench.scheduler.waiting.has_room("", 1, 3)


def test_a_key_that_was_served_more_does_not_displace_another() -> None:
    bench = Bench(max_num_seqs=2)
    for _ in range(2):
        bench.add(4, max_tokens=20, key_id="less")
    bench.step()
    other = bench.add(4, key_id="more")
    bench.scheduler.waiting.share_of(other).served = 1000.0
    for _ in range(10):
        bench.step()
    assert bench.scheduler.num_preemptions == 0
    bench.run()
    assert other.status is Status.FINISHED
