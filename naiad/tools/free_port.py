"""Finds free ports for a server that is about to start.

The kernel assigns ports of its ephemeral range to client sockets and to sockets bound to port 0, so
a free port of that range may be in use a moment later. Ports outside the range are used only by
processes that name them, so these are preferred.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = range(10_000, 65_536)


def free_ports(count: int) -> list[int]:
    """Returns `count` different free ports, or fewer if there are not enough."""
    ephemeral = ephemeral_ports()
    candidates = [port for port in PORTS if port not in ephemeral] or list(PORTS)
    ports: list[int] = []
    while candidates and len(ports) < count:
        port = candidates.pop(random.randrange(len(candidates)))
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            ports.append(port)
    return ports


def ephemeral_ports() -> range:
    """Returns the kernel's ephemeral range; empty if the system does not expose it."""
    try:
        low, high = (int(number) for number in EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(low, high + 1)
