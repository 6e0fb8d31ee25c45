from __future__ import annotations

from naiad.instances.restart import RestartPolicy, Restarts
from naiad.instances.template_process import TemplateBreaker

S = 1_000_000_000


def test_the_first_restart_is_at_once_and_the_next_ones_wait_ever_longer() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=10))
    assert [restarts.next_delay_s(0) for _ in range(5)] == [0.0, 0.1, 0.2, 0.4, 0.8]


def test_the_breaker_opens_after_too_many_deaths_within_the_window() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2, window_s=10))
    restarts.next_delay_s(0)
    restarts.next_delay_s(1 * S)
    assert not restarts.is_broken
    assert restarts.next_delay_s(2 * S) == RestartPolicy().broken_delay_s
    assert restarts.is_broken


def test_deaths_are_forgotten_after_the_window() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2, window_s=10))
    for at in range(3):
        restarts.next_delay_s(at * S)
    assert restarts.next_delay_s(60 * S) == 0.0
    assert not restarts.is_broken


def test_a_template_that_has_served_is_replaced_after_a_moment() -> None:
    breaker = TemplateBreaker()
    delays = []
    for at in range(20):
        breaker.on_end(at * S, has_started=True)
        delays.append(breaker.delay_s(at * S))
    assert delays[:4] == [0.0, 0.1, 0.2, 0.2]
    assert max(delays) == 0.2


def test_a_template_that_never_starts_is_tried_ever_less_often() -> None:
    breaker = TemplateBreaker()
    for at in range(6):
        breaker.on_end(at * S, has_started=False)
    assert breaker.delay_s(5 * S) == 10.0
    assert breaker.delay_s(15 * S) == 0.0
