"""Defines a request in flight (Call), the channel that carries it, and the listener for responses.

Times are time.monotonic_ns.
Rule: a channel reports the end of each call to its listener exactly once, with or without an error.
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
        """Index of the prepared request."""
        self.intended_ns = intended_ns
        """Time at which the schedule wanted the request sent; latency counts from it. In a closed
        loop it is the time at which the request was sent."""
        self.sequence = sequence
        self.sent_ns = 0
        self.written_ns = 0
        self.first_byte_ns = 0
        self.response_ns: list[int] | None = None
        """Arrival time of each response of a stream."""
        self.responses: list[Any] | None = None
        self.is_lost = False
        """True if the request failed because there is no connection to the server."""


class Listener(Protocol):
    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        """Called for each response to a streaming request."""

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        """Called when the response is complete or has failed.

        `payload` is the body or message of a single response, if the channel keeps it.
        """


class ClientChannel(Protocol):
    """A connection, or a stream of one, that reconnects after it was lost."""

    @property
    def num_in_flight(self) -> int: ...

    async def open(self) -> None:
        """Raises ConnectError."""

    def send(self, data: bytes, call: Call) -> None: ...

    def close(self) -> None: ...


class ConnectError(Exception):
    """The server cannot be reached; the message says where and why."""
