from __future__ import annotations

import asyncio

from naiad.transport.turn import MAX_TURN_S, Turn


class Time:
    """A clock, and an event loop that does what `call_soon` was given when told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.turn = Turn(lambda: self.now_s)
        self.loop = asyncio.new_event_loop()
        self.log: list[str] = []

    def is_over(self) -> bool:
        return self.turn.is_over(self.loop)

    def compute(self, parts: float) -> None:
        self.now_s += parts * MAX_TURN_S

    def work(self, name: str, parts: float) -> None:
        """A connection that computes for `parts` of the allowed time when it is resumed."""

        def resume() -> None:
            self.log.append(name)
            self.compute(parts)

        self.turn.wait(resume)

    def run(self) -> None:
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


def test_a_turn_is_over_when_its_time_is_used_up() -> None:
    time = Time()
    assert not time.is_over()
    time.compute(0.9)
    assert not time.is_over()
    time.compute(0.2)
    assert time.is_over()
    time.run()
    assert not time.is_over()
    time.loop.close()


def test_connections_that_wait_are_resumed_in_order_and_within_the_time() -> None:
    time = Time()
    time.is_over()
    for name in "abc":
        time.work(name, 0.6)
    time.run()
    assert time.log == ["a", "b"]
    time.run()
    assert time.log == ["a", "b", "c"]
    time.loop.close()


def test_nobody_overtakes_those_who_wait() -> None:
    time = Time()
    time.is_over()
    for name in "abc":
        time.work(name, 0.6)
    assert time.is_over()
    time.run()
    assert time.is_over()
    time.work("d", 0.1)
    time.run()
    assert time.log == ["a", "b", "c", "d"]
    time.run()
    assert not time.is_over()
    time.loop.close()


def test_one_that_waits_again_is_resumed_after_the_others() -> None:
    time = Time()
    time.is_over()

    def resume() -> None:
        time.log.append("long")
        assert not time.is_over()
        time.compute(1.1)
        assert time.is_over()
        if time.log.count("long") < 3:
            time.turn.wait(resume)

    time.turn.wait(resume)
    time.work("short", 0.1)
    for _ in range(5):
        time.run()
    assert time.log == ["long", "short", "long", "long"]
    time.loop.close()


def test_an_error_does_not_stop_those_who_wait() -> None:
    time = Time()
    time.loop.set_exception_handler(lambda loop, context: None)
    time.is_over()

    def fail() -> None:
        raise RuntimeError

    time.turn.wait(fail)
    time.work("next", 0.1)
    time.run()
    time.run()
    assert time.log == ["next"]
    time.loop.close()


def test_an_idle_endpoint_has_nothing_to_do() -> None:
    time = Time()
    time.is_over()
    time.run()
    time.run()
    assert not time.loop._ready  # type: ignore[attr-defined]
    time.loop.close()
