"""Finds TCP connections whose other end has vanished: its machine lost power, or a device between
has forgotten the connection. No packet says so.

A connection on which nothing is outstanding is found by the keepalive of the system, within 20 s.
One with unacknowledged bytes is found here. TCP_USER_TIMEOUT would find it, too, but ends a peer
that only does not read: such a peer keeps its window closed and acknowledges what asks for it.
Rule: slow is not vanished. Only segments that nobody acknowledges count, and probes of a closed
      window that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 2
VANISHED_S = 20.0
"""Nothing has been acknowledged for so long: the other end is gone."""
_INFO_BYTES = 128
_read_probes = struct.Struct("=3xB").unpack_from
_read_unacked = struct.Struct("=24xI").unpack_from
_read_bytes_acked = struct.Struct("=120xQ").unpack_from


def keep_alive(sock: socket.socket) -> None:
    """Has the system ask the other end of an idle connection whether it is there."""
    with contextlib.suppress(OSError, AttributeError):  # not TCP, or not Linux
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


def expect_responses(sock: socket.socket | None) -> None:
    """For a client that sends little and waits: its connection ends VANISHED_S after its server has
    vanished, also when a request is still unacknowledged."""
    if sock is not None:
        keep_alive(sock)
        with contextlib.suppress(OSError, AttributeError):
            limit_ms = int(VANISHED_S * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def discard(transport: asyncio.WriteTransport) -> None:
    """Aborts, and has the system drop what is unsent: without that it tries for minutes to send it
    to a machine that is gone."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class TcpWatch:
    """One connection, looked at about once per second. What is outstanding counts from the first
    look."""

    __slots__ = ("_bytes_acked", "_since_s", "_socket", "_was_waiting")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._bytes_acked = -1
        self._since_s = 0.0
        self._was_waiting = False
        if self._socket is not None:
            keep_alive(self._socket)

    def silent_s(self, now_s: float | None = None) -> float:
        """How long the other end has acknowledged nothing of what is outstanding."""
        info = self._read()
        if info is None:
            return 0.0
        now_s = time.monotonic() if now_s is None else now_s
        bytes_acked: int = _read_bytes_acked(info)[0]
        # With a closed window nothing is outstanding but probes; a peer that lives answers each.
        is_waiting = _read_unacked(info)[0] > 0 or _read_probes(info)[0] > 1
        if not (is_waiting and self._was_waiting) or bytes_acked != self._bytes_acked:
            self._bytes_acked, self._since_s = bytes_acked, now_s
        self._was_waiting = is_waiting
        return now_s - self._since_s

    def _read(self) -> bytes | None:
        if self._socket is None:
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except (OSError, AttributeError):
            return None
        return info if len(info) == _INFO_BYTES else None
