"""A request that repeats the last one of its connection but for its data: what the connection must
know to hand it over whole.

Clients repeat themselves, and walking through head, route, body and codec anew for each costs more
than the rest of the server's work.
Rule: what `begin` does with a request is what the connection and its route would have done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from naiad.transport.http1.response_queue import AnswerQueue


class Repeated(Protocol):
    size: int
    """Of the whole request, head and body; 0 where requests of other sizes may be repetitions,
    too."""

    def begin(self, answers: AnswerQueue, data: bytes) -> bool:
        """Called with so many bytes that have come while nothing else of the connection was under
        way; with any number of them where `size` is 0. False: nothing has happened, it is another
        request."""
        ...

    def is_head(self, data: bytes) -> bool:
        """All of the head of such a request, and nothing of its body, which the client sends
        without being asked to."""
        ...
