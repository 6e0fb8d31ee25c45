"""Both endpoints look at where a connection comes from, once, when it is made."""

from __future__ import annotations

import asyncio
import socket

import pytest

from naiad.frontends.grpc import GrpcFrontend
from naiad.transport import grpc_protocol, http1_connection, same_host
from tests.wire.grpc_fakes import FakeCore
from tests.wire.http_client import call, on_uvloop
from tests.wire.http_fakes import serving


@on_uvloop
async def test_http_connections_are_not_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[asyncio.BaseTransport] = []
    monkeypatch.setattr(http1_connection, "stop_pacing", seen.append)
    async with serving() as server:
        assert (await call(server.port, "GET", "/v2/health/live")).status == 200
    assert len(seen) == 1


@on_uvloop
async def test_grpc_connections_are_not_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithms: list[bytes] = []
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        except OSError:
            pytest.skip("this system gives no choice of a congestion control")

    def stop_pacing(transport: asyncio.BaseTransport) -> None:
        same_host.stop_pacing(transport)
        sock = transport.get_extra_info("socket")
        algorithms.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0"))

    monkeypatch.setattr(grpc_protocol, "stop_pacing", stop_pacing)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(GrpcFrontend(FakeCore()).protocol_factory, "127.0.0.1", 0)  # type: ignore[arg-type]
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
    assert await reader.readexactly(9)  # its SETTINGS: the connection has been made
    assert algorithms == [b"reno"]
    writer.close()
    await writer.wait_closed()
    listener.close()
    await listener.wait_closed()
