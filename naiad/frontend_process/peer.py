"""The client of a connection that a frontend process has, as the server process sees it.

The guard reads the address and the certificate of a client from the transport of its connection.
Where the transport is in a frontend, both travel in a `Peer`.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from naiad.frontend_process.messages import Peer


def describe_peer(transport: asyncio.BaseTransport | None) -> Peer:
    """Runs in the frontend."""
    if transport is None:
        return Peer()
    name = transport.get_extra_info("peername")
    own = transport.get_extra_info("sockname")
    certificate = transport.get_extra_info("peercert")
    return Peer(
        str(name[0]) if isinstance(name, tuple) and name else "",
        msgspec.json.encode(certificate) if certificate else b"",
        int(name[1]) if isinstance(name, tuple) and name else 0,
        (str(own[0]), int(own[1])) if isinstance(own, tuple) and own else None,
    )


class RemotePeer(asyncio.BaseTransport):
    """Stands in for the transport of a client that a frontend has."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(
            {
                "peername": (peer.address, peer.port),
                "sockname": peer.server,
                "peercert": _tuples(msgspec.json.decode(peer.certificate))
                if peer.certificate
                else None,
            }
        )


class TunnelTransport:
    """The transport of a socket pair to a frontend that has the client's TLS connection."""

    def __init__(self, transport: asyncio.BaseTransport, peer: Peer) -> None:
        self._transport = transport
        self._peer = RemotePeer(peer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in ("peername", "sockname", "peercert"):
            return self._peer.get_extra_info(name, default)
        return self._transport.get_extra_info(name, default)


def through_tunnel(transport: asyncio.BaseTransport, peer: Peer) -> asyncio.Transport:
    return cast(asyncio.Transport, TunnelTransport(transport, peer))


def _tuples(value: Any) -> Any:
    """The ssl module shows tuples where JSON has lists."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return value
