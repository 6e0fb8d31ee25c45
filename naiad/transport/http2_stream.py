"""One HTTP/2 stream: its state, its two flow-control windows and what waits to be sent on it.

The state machine is the tables below; http2_connection.py and http2_sender.py only look states up in them.
Rule: `streams` of a connection holds exactly the streams that are not CLOSED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

# Plain ints: they are compared and looked up for every frame.
OPEN: Final = 0
HALF_CLOSED_LOCAL: Final = 1
HALF_CLOSED_REMOTE: Final = 2
CLOSED: Final = 3
STATE_NAMES = ("OPEN", "HALF_CLOSED_LOCAL", "HALF_CLOSED_REMOTE", "CLOSED")

#: State after sending or receiving END_STREAM; a state that is not in the table must not do that.
AFTER_SENT_END: Final = {OPEN: HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE: CLOSED}
AFTER_RECEIVED_END: Final = {OPEN: HALF_CLOSED_REMOTE, HALF_CLOSED_LOCAL: CLOSED}
#: DATA and HEADERS may be received, or sent, in these states only. A reset takes any state to CLOSED.
MAY_RECEIVE: Final = frozenset(AFTER_RECEIVED_END)
MAY_SEND: Final = frozenset(AFTER_SENT_END)


class Stream:
    __slots__ = (
        "context",
        "has_headers",
        "id",
        "is_paused",
        "on_drained",
        "pending",
        "pending_bytes",
        "pending_end",
        "pending_trailers",
        "receive_window",
        "send_window",
        "sink",
        "state",
        "unacknowledged_bytes",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.state = OPEN
        self.send_window = send_window
        self.receive_window = receive_window
        self.unacknowledged_bytes = 0
        """Received, but not yet given back to the peer with a WINDOW_UPDATE."""
        self.is_paused = False
        """While set, nothing is given back: the peer stops when the window is used up."""
        self.has_headers = False
        self.pending: deque[bytes | bytearray | memoryview] | None = None
        self.pending_bytes = 0
        self.pending_end = False
        self.pending_trailers: bytes | None = None
        self.on_drained: Callable[[], None] | None = None
        """Called once, when little of what was pending is left; must not send anything at once."""
        self.sink: memoryview | None = None
        """Memory that the consumer prepared for the stream's next bytes; see Http2Connection.receive_buffer."""
        self.context: Any = None
        """Belongs to the layer above."""

    def __repr__(self) -> str:
        return f"<Stream {self.id} {STATE_NAMES[self.state]}>"
