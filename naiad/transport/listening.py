"""Sockets on which a server listens: the same address means the same for every command."""

from __future__ import annotations

import socket

from naiad.transport.tcp_watch import keep_alive


def bind(address: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """`::` takes clients of both families. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keep_alive(sock)  # what it accepts inherits that
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if address == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
