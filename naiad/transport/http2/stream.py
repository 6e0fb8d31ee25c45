"""One HTTP/2 stream: its state, its two flow-control windows and the data that waits to be sent.

The tables below are the state machine; connection.py and sender.py only look states up in them.
Rule: `streams` of a connection holds exactly the streams that are not CLOSED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

# Plain ints: they are compared and looked up for every frame.
OPEN: Final = 0
HALF_CLOSED_LOCAL: Final = 1
HALF_CLOSED_REMOTE: Final = 2
CLOSED: Final = 3
STATE_NAMES = ("OPEN", "HALF_CLOSED_LOCAL", "HALF_CLOSED_REMOTE", "CLOSED")

#: The state after sending or receiving END_STREAM; other states must not do that.
AFTER_SENT_END: Final = {OPEN: HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE: CLOSED}
AFTER_RECEIVED_END: Final = {OPEN: HALF_CLOSED_REMOTE, HALF_CLOSED_LOCAL: CLOSED}
#: DATA and HEADERS may be received, or sent, only in these states. A reset leads from any state to
#: CLOSED.
MAY_RECEIVE: Final = frozenset(AFTER_RECEIVED_END)
MAY_SEND: Final = frozenset(AFTER_SENT_END)


class Stream(msgspec.Struct, eq=False):
    id: int
    send_window: int
    receive_window: int
    state: int = OPEN
    unacknowledged_bytes: int = 0
    """Bytes received, but not yet returned to the peer's window with a WINDOW_UPDATE."""
    is_paused: bool = False
    """While set, the peer's window is not renewed: the peer stops when it is used up."""
    has_headers: bool = False
    pending: deque[bytes | bytearray | memoryview] | None = None
    pending_bytes: int = 0
    pending_end: bool = False
    pending_trailers: bytes | None = None
    on_drained: Callable[[], None] | None = None
    """Called once, when little pending data is left; must not send anything before it returns."""
    sink: memoryview | None = None
    """Memory that the consumer prepared for the stream's next bytes; see
    Http2Connection.receive_buffer."""
    context: Any = None
    """Set by the layer above, and used only there."""

    def __repr__(self) -> str:
        return f"<Stream {self.id} {STATE_NAMES[self.state]}>"
