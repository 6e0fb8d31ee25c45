"""What the transport must know about where a request goes; built by a frontend, one per distinct
request head.

Rule: everything here follows from the request head alone, so that it can be kept with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from naiad.transport.http1.exchange import Exchange
    from naiad.transport.http1.head import Head


class Route:
    __slots__ = ("body_buffer", "handle", "max_body_bytes", "oversize_message")

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        *,
        max_body_bytes: int | None = None,
        body_buffer: Callable[[int], memoryview | None] | None = None,
        oversize_message: Callable[[int | None, int], str] | None = None,
    ) -> None:
        self.handle = handle
        """Called with the whole request; answers now or later, and never raises for bad input."""
        self.max_body_bytes = max_body_bytes
        """Below the transport's own limit; None: the transport's limit alone."""
        self.body_buffer = body_buffer
        """Memory for a large body of so many bytes; None or a None result: the transport takes its
        own."""
        self.oversize_message = oversize_message
        """Words for a body of so many bytes (None: unknown) above the limit."""


Router: TypeAlias = "Callable[[Head], Route]"
