"""Which user of this machine opened a TCP connection to it.

In:  both ends of a connection. Out: a user id, from the kernel's table of sockets.
Rule: a connection whose client is not in the table has no user: the client is on another machine,
      or in another network namespace. A connection that its client has closed is GONE: the table
      shows root as the owner of what no process owns any more.
"""

from __future__ import annotations

import ipaddress
import sys
from asyncio import BaseTransport
from pathlib import Path

Address = tuple[str, int]
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_STATE, _USER = 0, 4
"""Columns of the tables, counted from the one after both ends of the connection."""
_ESTABLISHED = "01"
GONE = -1
"""Stands for the user of a connection whose client has left."""


def transport_user(peer: BaseTransport | None) -> int | None:
    """The user id of the process at the other end of a connection. Blocks like `tcp_user`."""
    if peer is None:
        return None
    client, server = peer.get_extra_info("peername"), peer.get_extra_info("sockname")
    if not isinstance(client, tuple) or not isinstance(server, tuple):
        return None
    return tcp_user((str(client[0]), int(client[1])), (str(server[0]), int(server[1])))


def tcp_user(client: Address, server: Address) -> int | None:
    """The user id of the process that opened the connection from `client` to `server`. Blocks for
    as long as it takes to read the table: milliseconds."""
    user = _read_user(client, server)
    # The kernel reads the state of a socket before its owner: a client that closes in between is
    # seen as root's. One that is open afterwards was open when its owner was read.
    return user if user != 0 else _read_user(client, server)


def _read_user(client: Address, server: Address) -> int | None:
    tables = [text for text in map(_read, TABLES) if text]
    row = _find(tables, client, server)
    if row is not None:
        return int(row[_USER]) if row[_STATE] == _ESTABLISHED else GONE
    # Only the server's own end tells a client elsewhere from one that has reset the connection.
    own = _find(tables, server, client)
    return None if not tables or (own and own[_STATE] == _ESTABLISHED) else GONE


def _read(table: Path) -> str:
    try:
        return table.read_text()
    except OSError:
        return ""


def _find(tables: list[str], local: Address, remote: Address) -> list[str] | None:
    """The columns of a socket after both of its ends."""
    for text in tables:
        for is_wide in (False, True):
            _, found, rest = text.partition(f": {_hex(local, is_wide)} {_hex(remote, is_wide)} ")
            if found:
                return rest.split(None, _USER + 1)
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
