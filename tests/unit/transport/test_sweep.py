"""The sweep over the connections of an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from naiad.transport import sweep
from naiad.transport.sweep import Sweep


class FakeLoop:
    """Keeps timers and callbacks until the test runs them."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []
        self.soon: list[Callable[[], None]] = []
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)


class FakeTimer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def start(connections: set[int], check: Callable[[int], Any]) -> tuple[Sweep[int], FakeLoop]:
    loop = FakeLoop()
    one = Sweep(connections, check)
    one.start(loop)  # type: ignore[arg-type]
    return one, loop


def test_checks_every_connection_in_slices() -> None:
    connections = set(range(sweep.SLICE_CONNECTIONS * 2 + 10))
    checked: list[int] = []
    _, loop = start(connections, checked.append)
    loop.timers[0].callback()
    assert len(checked) == sweep.SLICE_CONNECTIONS
    while loop.soon:
        before = len(checked)
        loop.soon.pop()()
        assert len(checked) - before <= sweep.SLICE_CONNECTIONS
    assert sorted(checked) == sorted(connections)
    assert [timer.delay_s for timer in loop.timers] == [sweep.INTERVAL_S] * 2


def test_a_slice_ends_when_its_time_is_over() -> None:
    checked: list[int] = []

    def check(connection: int) -> None:
        checked.append(connection)
        loop.now_s += sweep.SLICE_S * 0.4

    _, loop = start(set(range(7)), check)
    loop.timers[0].callback()
    assert len(checked) == 3
    while loop.soon:
        loop.soon.pop()()
    assert sorted(checked) == list(range(7))


def test_does_not_check_a_connection_that_has_closed_meanwhile() -> None:
    connections = {1, 2, 3}
    checked: list[int] = []

    def check(connection: int) -> None:
        checked.append(connection)
        connections.clear()

    _, loop = start(connections, check)
    loop.timers[0].callback()
    assert len(checked) == 1


def test_a_sweep_that_takes_longer_than_its_interval_is_not_doubled() -> None:
    connections = set(range(sweep.SLICE_CONNECTIONS + 1))
    checked: list[int] = []
    _, loop = start(connections, checked.append)
    loop.timers[0].callback()
    loop.timers[1].callback()
    assert len(loop.soon) == 1
    loop.soon.pop()()
    assert sorted(checked) == sorted(connections)


async def test_starts_once_and_stops() -> None:
    one: Sweep[int] = Sweep(set(), print)
    one.start(asyncio.get_running_loop())
    timer = one._timer
    one.start(asyncio.get_running_loop())
    assert one._timer is timer
    one.stop()
    assert not one.is_running
