"""Passes the bytes of a TLS connection on to the server process, and back, through a socket pair.

Rule: what one side does not read, the other side is not asked to send.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast


class TunnelEnd(asyncio.Protocol):
    """One of the two ends; `other` is the other one."""

    other: TunnelEnd
    transport: asyncio.Transport | None = None
    """None until the end is connected."""

    def __init__(self, on_lost: Callable[[TunnelEnd], None]) -> None:
        self._on_lost = on_lost
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.other.is_lost and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False  # the transport closes, as HTTP connections do

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost = True
        if not self.other.is_lost and self.other.transport is not None:
            self.other.transport.close()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self.other._set_reading(is_paused=True)

    def resume_writing(self) -> None:
        self.other._set_reading(is_paused=False)

    def _set_reading(self, *, is_paused: bool) -> None:
        if self.is_lost or self.transport is None or self.transport.is_closing():
            return
        if is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class Tunnels:
    """The tunnels of one process."""

    def __init__(self) -> None:
        self._opening: set[asyncio.Task[None]] = set()
        self._open: set[TunnelEnd] = set()
        self._all_closed: asyncio.Event | None = None

    def open(self, client: asyncio.Transport, server: socket.socket) -> None:
        """`client` is the TLS connection, whose reading is paused; `server` is this process's end
        of the socket pair, which is closed with the tunnel."""
        ends = TunnelEnd(self._on_closed), TunnelEnd(self._on_closed)
        ends[0].other, ends[1].other = ends[1], ends[0]
        ends[0].connection_made(client)
        self._open.add(ends[0])
        client.set_protocol(ends[0])
        task = asyncio.get_running_loop().create_task(_connect(ends[0], ends[1], server))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _on_closed(self, end: TunnelEnd) -> None:
        self._open.discard(end)
        if not self._open and self._all_closed is not None:
            self._all_closed.set()

    async def stop(self, grace_s: float) -> None:
        """Returns when the server process has closed its connections, or after `grace_s`."""
        if self._open:
            self._all_closed = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), grace_s)


async def _connect(client: TunnelEnd, server: TunnelEnd, sock: socket.socket) -> None:
    sock.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: server, sock)
    assert server.transport is not None
    assert client.transport is not None
    if client.is_lost:
        server.transport.close()
    else:
        client.transport.resume_reading()
