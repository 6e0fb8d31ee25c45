from __future__ import annotations

import pytest

from naiad.instances import busy_poll
from naiad.instances.busy_poll import MIN_LONE_REQUESTS, BusyPoll, has_spare_cpu
from tests.fakes import FakeClock

WINDOW_NS = 200_000


class Server:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.poll = BusyPoll(self.clock, WINDOW_NS)

    def pass_ns(self, ns: int) -> None:
        self.clock.skip(ns)
        self.clock.turn_once()

    def request(self, *, gap_ns: int = 1_000, takes_ns: int = 1_000, num_requests: int = 1) -> None:
        self.pass_ns(gap_ns)
        self.poll.on_batch_sent(num_requests, self.clock.now_ns())
        self.pass_ns(takes_ns)
        self.poll.on_batch_done()

    @property
    def is_awake(self) -> bool:
        return self.clock.is_due


def lone_client() -> Server:
    server = Server()
    for _ in range(MIN_LONE_REQUESTS + 1):
        server.request()
    return server


def test_a_client_that_waits_for_each_response_keeps_the_loop_awake() -> None:
    server = lone_client()
    assert server.is_awake
    server.pass_ns(WINDOW_NS // 2)
    assert server.is_awake


def test_the_loop_sleeps_when_nothing_has_come_for_the_window() -> None:
    server = lone_client()
    server.pass_ns(WINDOW_NS)
    assert not server.is_awake


def test_few_lone_requests_are_not_a_habit() -> None:
    server = Server()
    for _ in range(MIN_LONE_REQUESTS):
        server.request()
    assert not server.is_awake


@pytest.mark.parametrize("slow", ["gap_ns", "takes_ns"])
def test_waits_that_outlast_the_window_are_slept_through(slow: str) -> None:
    server = lone_client()
    for _ in range(2):
        server.request(**{slow: WINDOW_NS * 3})
    server.pass_ns(WINDOW_NS)
    assert not server.is_awake
    server.pass_ns(WINDOW_NS * 3 if slow == "gap_ns" else 1_000)
    server.poll.on_batch_sent(1, server.clock.now_ns())
    assert server.is_awake == (slow == "gap_ns"), (
        "a quick model is waited for even when its client is slow, and the other way round"
    )


@pytest.mark.parametrize("num_requests", [1, 2])
def test_never_under_load(num_requests: int) -> None:
    server = lone_client()
    server.poll.on_batch_sent(num_requests, server.clock.now_ns())
    server.poll.on_batch_sent(1, server.clock.now_ns())
    server.pass_ns(1)
    assert not server.is_awake
    server.poll.on_batch_done()
    server.poll.on_batch_done()
    assert not server.is_awake
    assert server.poll.num_batches == 0


@pytest.mark.parametrize(
    ("cpus", "quota", "is_spare"),
    [(1, None, False), (2, None, True), (8, 2.0, False), (8, 4.0, True)],
)
def test_only_with_a_cpu_to_spare(
    cpus: int, quota: float | None, is_spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setattr(busy_poll, "quota_cpus", lambda: quota)
    assert has_spare_cpu() == is_spare
