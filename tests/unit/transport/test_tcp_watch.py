from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from naiad.transport.tcp_watch import TcpWatch


class Socket:
    """Shows a TCP_INFO with these numbers."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}
        self.unacked = 0
        self.probes = 0
        self.bytes_acked = 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[option] = value

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        info = bytearray(size)
        struct.pack_into("=B", info, 3, self.probes)
        struct.pack_into("=I", info, 24, self.unacked)
        struct.pack_into("=Q", info, 120, self.bytes_acked)
        return bytes(info)


class Transport(asyncio.BaseTransport):
    def __init__(self, sock: Any) -> None:
        super().__init__({"socket": sock})


def test_an_idle_connection_is_asked_by_the_system() -> None:
    sock = Socket()
    watch = TcpWatch(Transport(sock))
    assert sock.options[socket.SO_KEEPALIVE] == 1
    found_s = sock.options[socket.TCP_KEEPIDLE]
    found_s += sock.options[socket.TCP_KEEPINTVL] * sock.options[socket.TCP_KEEPCNT]
    assert found_s == 20
    assert [watch.silent_s(now_s) for now_s in (0, 100, 200)] == [0, 0, 0]


@pytest.mark.parametrize(("unacked", "probes"), [(1, 0), (0, 2)])
def test_what_nobody_acknowledges_counts_from_when_it_was_seen(unacked: int, probes: int) -> None:
    sock = Socket()
    watch = TcpWatch(Transport(sock))
    assert watch.silent_s(50) == 0
    sock.unacked, sock.probes = unacked, probes
    assert [watch.silent_s(now_s) for now_s in (100, 101, 110)] == [0, 1, 10]
    sock.unacked = sock.probes = 0
    assert watch.silent_s(111) == 0


def test_a_peer_that_acknowledges_a_little_lives() -> None:
    sock = Socket()
    watch = TcpWatch(Transport(sock))
    sock.unacked = 9
    for now_s in range(0, 300, 15):
        sock.bytes_acked += 1
        assert watch.silent_s(now_s) == 0


def test_a_transport_that_is_not_tcp_is_never_silent() -> None:
    assert TcpWatch(Transport(None)).silent_s(1000) == 0


async def test_a_peer_that_reads_nothing_has_not_vanished() -> None:
    """The window is closed, and its system answers the probes."""
    accepted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_connection(
        asyncio.Protocol, "127.0.0.1", port
    )
    sock: socket.socket = transport.get_extra_info("socket")
    watch = TcpWatch(transport)
    transport.write(b"x" * (64 << 20))

    def is_closed() -> bool:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        return bool(struct.unpack_from("=I", info, 24)[0] == 0)

    while not accepted or not is_closed():
        await asyncio.sleep(0.01)
    assert transport.get_write_buffer_size() > 0
    assert [watch.silent_s(now_s) for now_s in (0, 50, 100)] == [0, 0, 0]
    transport.abort()
    accepted[0].transport.abort()
    server.close()
    await server.wait_closed()
