"""Channels without a network, for tests of loads."""

from __future__ import annotations

from typing import Any

from naiad.perf.channels.call import Call, ConnectError, Listener
from tests.fakes import FakeClock


class FakeChannel:
    """Holds sent requests until the test calls `finish`, `respond` or `lose`."""

    def __init__(self, listener: Listener, clock: FakeClock) -> None:
        self.listener = listener
        self.clock = clock
        self.sent: list[bytes] = []
        self.calls: list[Call] = []
        self.is_open = self.is_closed = False
        self.refuses = False

    @property
    def num_in_flight(self) -> int:
        return len(self.calls)

    async def open(self) -> None:
        if self.refuses:
            raise ConnectError("cannot connect to nowhere: Connection refused")
        self.is_open = True

    def send(self, data: bytes, call: Call) -> None:
        self.sent.append(data)
        self.calls.append(call)

    def close(self) -> None:
        self.is_closed = True

    def finish(self, error: str | None = None, payload: Any = None) -> None:
        call = self.calls.pop(0)
        call.first_byte_ns = self.clock.now_ns()
        self.listener.on_end(call, error, payload, self.clock.now_ns())

    def respond(self, payload: Any) -> None:
        self.listener.on_response(self.calls[0], payload, self.clock.now_ns())

    def lose(self) -> None:
        call = self.calls.pop(0)
        call.is_lost = True
        self.listener.on_end(call, "cannot connect", None, self.clock.now_ns())


class FakeNetwork:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.channels: list[FakeChannel] = []

    def make(self, listener: Listener) -> FakeChannel:
        self.channels.append(FakeChannel(listener, self.clock))
        return self.channels[-1]

    @property
    def busy(self) -> list[FakeChannel]:
        return [channel for channel in self.channels if channel.calls]
