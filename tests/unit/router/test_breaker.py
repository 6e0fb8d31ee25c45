from __future__ import annotations

import pytest

from naiad.router.breaker import Breaker, BreakerOptions, BreakerState
from tests.unit.router.fleet_of import Seconds

OPTIONS = BreakerOptions(failures=3, wait_s=1.0, max_wait_s=4.0)


def opened() -> tuple[Breaker, Seconds]:
    clock = Seconds()
    breaker = Breaker(OPTIONS, clock)
    for _ in range(3):
        breaker.on_failure()
    return breaker, clock


def test_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(OPTIONS, Seconds())
    breaker.on_failure()
    breaker.on_failure()
    assert breaker.allows()
    breaker.on_failure()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows()


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker(OPTIONS, Seconds())
    for _ in range(5):
        breaker.on_failure()
        breaker.on_failure()
        breaker.on_success()
    assert breaker.state is BreakerState.CLOSED


def test_half_open_allows_one_request_at_a_time() -> None:
    breaker, clock = opened()
    clock.now_s += 0.9
    assert not breaker.allows()
    clock.now_s += 0.2
    assert breaker.allows()
    breaker.on_sent()
    assert not breaker.allows()
    breaker.on_success()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows()


def test_a_failed_trial_doubles_the_wait_up_to_the_maximum() -> None:
    breaker, clock = opened()
    for wait_s in (2.0, 4.0, 4.0):
        clock.now_s = breaker.retry_s
        assert breaker.allows()
        breaker.on_sent()
        breaker.on_failure()
        assert breaker.retry_s == pytest.approx(clock.now_s + wait_s)


def test_a_trial_whose_client_left_makes_room_for_another() -> None:
    breaker, clock = opened()
    clock.now_s += 1.1
    assert breaker.allows()
    breaker.on_sent()
    breaker.on_cancelled()
    assert breaker.allows()


def test_a_health_check_ends_the_wait() -> None:
    breaker, _ = opened()
    breaker.on_healthy()
    assert breaker.allows()
    assert breaker.state is BreakerState.HALF_OPEN


def test_failures_of_requests_that_were_under_way_do_not_prolong_the_wait() -> None:
    breaker, _ = opened()
    retry_s = breaker.retry_s
    breaker.on_failure()
    assert breaker.retry_s == retry_s


def test_rejects_options_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="max_wait_s >= wait_s"):
        BreakerOptions(wait_s=5.0, max_wait_s=1.0)
