"""Ports for a server that is to be started: free ones that nobody gets by chance before it has
them.

The kernel serves clients, and those who ask for any port, from a range of its own: one of these may
be somebody's a moment after it was found free. The others are taken only by those who name them.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

CLIENT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = range(10_000, 65_536)


def free_ports(count: int) -> list[int]:
    """All different. Fewer where there are no more."""
    taken = client_ports()
    candidates = [port for port in PORTS if port not in taken] or list(PORTS)
    found: list[int] = []
    while candidates and len(found) < count:
        port = candidates.pop(random.randrange(len(candidates)))
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            found.append(port)
    return found


def client_ports() -> range:
    """Empty where the system does not tell."""
    try:
        low, high = (int(word) for word in CLIENT_RANGE.read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(low, high + 1)
