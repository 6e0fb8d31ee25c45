"""Connections that never leave the machine: no congestion to control, and so nothing to be paced.

Where the system's congestion control is BBR, the kernel paces every write by a timer and measures bandwidth, over the loopback device too:
a tenth of the rate of both small requests and large tensors. Reno does neither, and every kernel has it and allows it to everybody.
Connections from elsewhere keep what the administrator chose.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

_LOOPBACK = ("127.", "::ffff:127.")


def is_same_host(peer: Any, own: Any) -> bool:
    """Of the addresses that getpeername and getsockname give."""
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        return False  # a Unix socket, or already gone
    return peer[0] in (own[0], "::1") or str(peer[0]).startswith(_LOOPBACK)


def stop_pacing(transport: asyncio.BaseTransport) -> None:
    """When its peer is on this machine; otherwise, or where the system has no such choice, nothing happens."""
    if not is_same_host(transport.get_extra_info("peername"), transport.get_extra_info("sockname")):
        return
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
