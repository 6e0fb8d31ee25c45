"""Control over HTTP with a server that responds late."""

from __future__ import annotations

import asyncio

import pytest

from naiad.perf.channels.address import Address
from naiad.perf.channels.control import ControlError
from naiad.perf.channels.control_http import HttpControl


async def test_a_late_response_is_none_to_the_next_request() -> None:
    next_has_come = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "/first" in head:
            await next_has_come.wait()
        next_has_come.set()
        body = head.split()[1].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    control = HttpControl(Address("127.0.0.1", port))
    with pytest.raises(ControlError, match="did not respond to /first"):
        await control.request("GET", "/first", limit_s=0.01)
    assert await control.request("GET", "/second") == b"/second"
    await control.close()
    server.close()
