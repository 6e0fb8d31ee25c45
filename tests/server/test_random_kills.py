"""A few random kills; tests/attacks/random_kills.py makes as many as you like."""

from __future__ import annotations

from tests.attacks.random_kills import attack


def test_random_kills_lose_only_what_was_under_way() -> None:
    outcome = attack(num_kills=25, seed=11)
    assert outcome.violations == []
    assert all(outcome.succeeded[name] for name in ("http infer pair", "grpc pair", "grpc stream"))
