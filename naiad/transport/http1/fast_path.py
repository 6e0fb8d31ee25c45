"""What a connection knows of the fast path: requests that repeat an earlier one of the connection
skip head, route, body and codec (naiad.fastpath.http_connection).

Rule: the result of a consumed request is what the connection and its route would have produced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from naiad.transport.http1.response_queue import ResponseQueue


class FastPath(Protocol):
    def consume(self, responses: ResponseQueue, data: bytes) -> int:
        """Called with the bytes of a read while the connection has no other request under way.
        Returns the number of bytes consumed: all of them when they are exactly one such request,
        whose exchange is then in the queue; otherwise 0, and nothing has happened."""
        ...

    def is_head(self, data: bytes) -> bool:
        """`data` is the whole head of such a request and nothing of its body, and the client sends
        the body without waiting for a 100 response."""
        ...
