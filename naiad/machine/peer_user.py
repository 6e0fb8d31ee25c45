"""Which user of this machine opened a TCP connection to it.

In:  both ends of a connection. Out: a user id, from the kernel's table of sockets.
Rule: a connection that is not in the table has no user: its other end is on another machine, or in
      another network namespace.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

Address = tuple[str, int]
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Columns of the tables."""


def tcp_user(client: Address, server: Address) -> int | None:
    """The user id of the process that opened the connection from `client` to `server`. Blocks for
    as long as it takes to read the table: milliseconds."""
    ends = {(_hex(client, is_wide), _hex(server, is_wide)) for is_wide in (False, True)}
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > _USER and (columns[_LOCAL], columns[_REMOTE]) in ends:
                return int(columns[_USER])
    return None


def _hex(address: Address, is_wide: bool) -> str:
    """An address as the kernel prints it. A wide one is IPv6, to which IPv4 can be mapped."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    packed = host.packed
    if is_wide and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    words = (packed[index : index + 4] for index in range(0, len(packed), 4))
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{address[1]:04X}"
