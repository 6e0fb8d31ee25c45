"""Tests of the number of prompt tokens in steps that other sequences wait for."""

from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.llm.block_pool import BlockPool
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.prefill_pace import MIN_TOKENS, PrefillPace
from naiad.llm.sequence import Sequence
from naiad.llm.token_scheduler import StepPlan, TokenScheduler

MS = 1_000_000


def test_the_first_step_is_not_limited() -> None:
    assert PrefillPace(50.0).max_tokens(1024) == 1024


def test_a_step_takes_about_the_maximum_delay() -> None:
    pace = PrefillPace(50.0)
    pace.on_step(1000, 200 * MS)  # 0.2 ms each
    assert pace.max_tokens(1024) == 240
    assert pace.max_tokens(100) == 100


def test_a_slow_machine_still_goes_on() -> None:
    pace = PrefillPace(50.0)
    pace.on_step(100, 10_000 * MS)
    assert pace.max_tokens(1024) == MIN_TOKENS


def test_the_pace_follows_the_machine() -> None:
    pace = PrefillPace(50.0)
    pace.on_step(1000, 100 * MS)
    before = pace.max_tokens(1024)
    for _ in range(20):
        pace.on_step(500, 500 * MS)
    assert before == 496
    assert pace.max_tokens(1024) == 48
    for _ in range(20):
        pace.on_step(500, 50 * MS)
    assert pace.max_tokens(1024) == 496


def test_steps_with_few_prompt_tokens_say_nothing() -> None:
    pace = PrefillPace(50.0)
    pace.on_step(1000, 100 * MS)
    before = pace.max_tokens(1024)
    for count in (0, 1, 15):
        pace.on_step(count, 500 * MS)
    assert pace.max_tokens(1024) == before


def test_zero_means_no_limit() -> None:
    pace = PrefillPace(0.0)
    pace.on_step(100, 10_000 * MS)
    assert pace.max_tokens(1024) == 1024


def test_rejects_a_negative_delay() -> None:
    with pytest.raises(NaiadError, match="max_token_delay_ms is -1, expected at least 0"):
        EngineSettings(max_token_delay_ms=-1.0).check()


class Device:
    """A scheduler in front of a device that needs 1 ms per token."""

    def __init__(self) -> None:
        pool = BlockPool(1000, 16)
        self.scheduler = TokenScheduler(pool, 8, 1024, False, 1.0, 50.0)
        self.num_made = 0

    def add(self, num_tokens: int) -> Sequence:
        prompt = list(range(num_tokens))
        request = GenerationRequest(
            id=str(self.num_made),
            prompt=prompt,
            parameters=SamplingParameters(max_tokens=100),
        )
        sequence = Sequence(request, 0, prompt, num_tokens + 100, 0, self.num_made)
        self.num_made += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        for row in plan.rows:
            if row.is_sampled:
                row.sequence.num_pending -= 1
                row.sequence.tokens.append(1)
        self.scheduler.pace.on_step(plan.num_tokens - plan.num_single, plan.num_tokens * MS)
        return plan


def test_a_long_prompt_does_not_delay_the_tokens_of_another_sequence() -> None:
    device = Device()
    device.add(100)
    assert device.step().num_tokens == 100
    device.add(2000)
    steps = [device.step() for _ in range(50)]
    assert all(plan.num_single for plan in steps)
    assert max(plan.num_tokens for plan in steps) <= 50
    prompt_tokens = sum(plan.num_tokens - plan.num_single for plan in steps[:44])
    assert prompt_tokens >= 1900  # most of each step belongs to the prompt


def test_a_prompt_that_nobody_waits_for_is_not_divided() -> None:
    device = Device()
    device.add(100)
    first = device.step().rows[0].sequence
    device.scheduler.finish(first)
    device.add(1000)
    assert device.step().num_tokens == 1000
