"""One request on its way: what the load knows of it while it is out, and who is told when answers
come.

Times are time.monotonic_ns. Rule: a channel tells its listener of each call's end exactly once,
with an error or without.
"""

from __future__ import annotations

from typing import Any, Protocol


class Call:
    __slots__ = (
        "first_byte_ns",
        "intended_ns",
        "is_lost",
        "item",
        "response_ns",
        "responses",
        "sent_ns",
        "sequence",
        "slot",
        "written_ns",
    )

    def __init__(self, slot: int, item: int, intended_ns: int, sequence: int = -1) -> None:
        self.slot = slot
        self.item = item
        """Which prepared request it was: an index into the data set."""
        self.intended_ns = intended_ns
        """When the schedule wanted it sent; latency counts from here. In a closed loop that is when
        it was sent."""
        self.sequence = sequence
        self.sent_ns = 0
        self.written_ns = 0
        self.first_byte_ns = 0
        self.response_ns: list[int] | None = None
        """Arrival of each response of a stream."""
        self.responses: list[Any] | None = None
        self.is_lost = False
        """It failed because there is no connection, not because the server said so."""


class Listener(Protocol):
    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        """One of several responses to a streaming request."""

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        """The whole answer is there; `payload` is the body or message of a request with a single
        answer, where it was kept."""


class Channel(Protocol):
    """A connection, or a stream within one, that reopens itself when it was lost."""

    @property
    def num_in_flight(self) -> int: ...

    async def open(self) -> None:
        """Raises ConnectError."""

    def send(self, data: bytes, call: Call) -> None: ...

    def close(self) -> None: ...


class ConnectError(Exception):
    """The server cannot be reached; the message says where and why."""
