"""After a start, the server and its workers listen on the three documented ports of loopback only:
on no other TCP or UDP port, and on no unix socket."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.server.harness import Server, naiad, process_tree

LISTEN = "0A"
ACCEPTS_CONNECTIONS = 1 << 16
"""__SO_ACCEPTCON in the flags of /proc/net/unix."""


def own_sockets(pids: list[int]) -> set[str]:
    """Returns the inodes of the sockets that the processes hold."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
            if found := re.fullmatch(r"socket:\[(\d+)\]", link):
                inodes.add(found[1])
    return inodes


def rows(name: str) -> list[list[str]]:
    path = Path("/proc/net") / name
    return [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []


def test_only_the_documented_ports_are_open(repositories: Path) -> None:
    with naiad([str(repositories / "main")]) as server:
        inodes = own_sockets(process_tree(server.pid))
        tcp = {
            row[1] for row in rows("tcp") + rows("tcp6") if row[3] == LISTEN and row[9] in inodes
        }
        assert tcp == {f"0100007F:{port:04X}" for port in ports(server)}
        assert not [row for row in rows("udp") + rows("udp6") if row[9] in inodes]
        listening = [
            row
            for row in rows("unix")
            if row[6] in inodes and int(row[3], 16) & ACCEPTS_CONNECTIONS
        ]
        assert not listening


def ports(server: Server) -> tuple[int, int, int]:
    return server.http_port, server.grpc_port, server.metrics_port
