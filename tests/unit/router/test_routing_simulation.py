"""The policies in front of simulated engines: a small form of bench/routing.py."""

from __future__ import annotations

import pytest

from bench.routing import Result, check, simulate


def results(shape: str, num_requests: int) -> dict[str, Result]:
    return {
        policy: simulate(shape, policy, 4, num_requests, seed=1)
        for policy in ("round_robin", "least_load", "prefix")
    }


@pytest.mark.parametrize(("shape", "num_requests"), [("chats", 300), ("no_sharing", 200)])
def test_prefix_reaches_its_goals(shape: str, num_requests: int) -> None:
    assert check(shape, results(shape, num_requests)) == []


def test_a_hot_prefix_does_not_pile_up() -> None:
    found = results("hot_prefix", 150)
    assert check("hot_prefix", found) == []
    # Every cache has the prefix soon, so that the median is a hit with every policy.
    assert found["prefix"].median_ms > found["round_robin"].median_ms / 2
    assert found["prefix"].busiest < 0.4
