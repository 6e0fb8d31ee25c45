"""Whether a client still reads what it is sent: it is gone, or it is too slow.

In:  a transport, a look about once per second. Out: a Verdict.
Rule: only bytes that leave count as progress, never bytes that are added. Where the socket is TCP,
      what the client has acknowledged is what has left, in the system's buffers as well; elsewhere
      the buffer of the transport must become shorter.
"""

from __future__ import annotations

import array
import asyncio
import enum
import fcntl
import termios

from naiad.transport.tcp_watch import VANISHED_S, TcpWatch

CLEAN_LOOK_S = 3.0


class Verdict(enum.Enum):
    READS = 0
    VANISHED = 1
    """It has acknowledged nothing for VANISHED_S, and answers no probe."""
    SLOW = 2
    """It has read nothing for the time that it has."""


class WriteWatch(TcpWatch):
    """One connection."""

    __slots__ = ("_due_s", "_mark", "_mark_s", "_transport", "is_clean")

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._transport = transport
        self._mark = (0, 0)
        self._mark_s = 0.0
        self._due_s = 0.0
        self.is_clean = False
        """At the last look everything was sent and acknowledged."""

    def is_due(self, now_s: float) -> bool:
        """A look costs two system calls, so connections that only wait are looked at less often."""
        return not self.is_clean or now_s >= self._due_s

    def look(self, now_s: float, limit_s: float, held_bytes: int = 0, activity: int = 0) -> Verdict:
        """`limit_s` is the time of a client that reads nothing. `held_bytes` wait above the
        transport until the client allows them; `activity` counts what went down from there."""
        buffered = self._transport.get_write_buffer_size()
        silent_s = self.silent_s(now_s)
        outstanding = self._outstanding_bytes()
        self.is_clean = not (buffered or outstanding or held_bytes)
        self._due_s = now_s + CLEAN_LOOK_S
        if silent_s > VANISHED_S:
            return Verdict.VANISHED
        if outstanding is None:  # not TCP
            has_moved = buffered < self._mark[1] or (held_bytes and activity != self._mark[0])
            mark = (activity, buffered)
        else:
            mark = (self._bytes_acked, 0) if buffered or outstanding else (activity, 1)
            has_moved = mark != self._mark
        if self.is_clean or has_moved or not self._mark_s:
            self._mark_s = now_s
        self._mark = mark
        return Verdict.SLOW if now_s - self._mark_s > limit_s else Verdict.READS

    def _outstanding_bytes(self) -> int | None:
        """What the client has not acknowledged of what was sent; None if the socket is not TCP."""
        if self._socket is None or self._bytes_acked < 0:
            return None
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, count)
        except (OSError, ValueError):
            return None
        return count[0]
