"""What the transport knows about the destination of a request; a frontend builds one route per
distinct request head.

Rule: everything here follows from the request head alone, so the route can be cached with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from naiad.errors import Code

if TYPE_CHECKING:
    from naiad.core.identity import Identity
    from naiad.core.tensor import Buffer
    from naiad.errors import NaiadError
    from naiad.keys.guard import Entrance
    from naiad.keys.local_gate import LocalGate
    from naiad.transport.http1.connection import Http1Connection
    from naiad.transport.http1.exchange import Exchange
    from naiad.transport.http1.head import Head


class Route:
    __slots__ = (
        "body_buffer",
        "gate",
        "handle",
        "leaves",
        "max_body_bytes",
        "on_lost",
        "oversize_message",
        "refuse",
    )

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        *,
        max_body_bytes: int | None = None,
        body_buffer: Callable[[int], memoryview | None] | None = None,
        oversize_message: Callable[[int, int], str] | None = None,
        on_lost: Callable[[Buffer, Identity | None], bool] | None = None,
    ) -> None:
        self.handle = handle
        """Called with the whole request. Responds now or later, and never raises for bad input."""
        self.max_body_bytes = max_body_bytes
        """A limit below the transport's own; None applies the transport's limit alone."""
        self.body_buffer = body_buffer
        """Returns memory for a large body of the given size. The transport uses its own memory when
        this is None or returns None."""
        self.oversize_message = oversize_message
        """Returns the error message for a body above the route's own limit, or above the
        transport's where the route has none, given its size and the limit. The size of a chunked
        body is what its chunks have announced so far. None chooses the message that all other
        routes have."""
        self.on_lost = on_lost
        """Called with what has arrived of the body of a request that is refused or lost before it
        is handled, and its owner, perhaps again when more has arrived. Returns True when it has
        seen enough."""
        self.gate: Entrance | LocalGate | None = None
        """Asked for every request before its body is read; None when everybody may enter."""
        self.refuse: Callable[[Exchange, NaiadError], None] = _respond_refusal
        """Responds to a request that the gate refuses."""
        self.leaves: Callable[[Http1Connection], bool] | None = None
        """Returns True when another process serves the request: the connection goes there, before
        anything of the request is handled. None when this process serves all of them."""

    def body_limit(self, transport_limit: int) -> int:
        if self.max_body_bytes is None:
            return transport_limit
        return min(self.max_body_bytes, transport_limit)


def _respond_refusal(exchange: Exchange, error: NaiadError) -> None:
    exchange.respond_error(503 if error.code is Code.UNAVAILABLE else 403, error.message)


Router: TypeAlias = "Callable[[Head], Route]"
