"""Replays the seeds and what the fuzzers have found, and runs some mutations, the same every time.
`make fuzz` looks for more."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.target import TARGETS, Target, load_targets

NUM_CASES = 300
NUM_LIVE_CASES = 100

load_targets()


@pytest.fixture(params=sorted(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    chosen = TARGETS[request.param]
    if chosen.missing_packages():
        pytest.skip(f"needs {', '.join(chosen.missing_packages())}")
    return chosen


def test_seeds_and_earlier_defects(target: Target) -> None:
    assert target.seeds()
    for data in (*target.seeds(), *target.found()):
        target.run(data)


def test_mutations(target: Target) -> None:
    chance = random.Random(target.name)
    seeds = target.seeds()
    for _ in range(NUM_LIVE_CASES if target.is_live else NUM_CASES):
        target.run(target.mutated(chance.choice(seeds), chance.choice(seeds), chance))
