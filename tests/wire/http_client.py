"""A plain HTTP/1.1 client: it sends exactly what a test says, reads exactly one response, and can
hang up in any way."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop


class Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> str:
        return str(self.json()["error"])


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 28))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        fields = {"Host": "test", "Content-Length": str(len(body))} | (headers or {})
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def read_head(self) -> Reply:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return Reply(int(lines[0].split(" ")[1]), headers, b"")

    async def read_chunk(self) -> bytes:
        """The next chunk; b"" at the end of the response."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:size]

    async def read(self, *, is_head: bool = False) -> Reply:
        reply = await self.read_head()
        if is_head or reply.status == 204:
            return reply
        if reply.headers.get("Transfer-Encoding") == "chunked":
            while chunk := await self.read_chunk():
                reply.body += chunk
        else:
            reply.body = await self.reader.readexactly(int(reply.headers["Content-Length"]))
        return reply

    async def call(
        self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        self.request(
            method, path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers
        )
        return await self.read(is_head=method == "HEAD")

    async def is_closed_by_server(self) -> bool:
        return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    async def hang_up(self, how: str) -> None:
        if how == "reset":
            self.reset()
        elif how == "half-close":
            self.writer.write_eof()
        else:
            await self.close()

    def reset(self) -> None:
        """Hangs up with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def call(
    port: int, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None
) -> Reply:
    client = await Client.connect(port)
    try:
        return await client.call(method, path, body, headers)
    finally:
        await client.close()


def on_uvloop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test on the event loop that serves in production."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*arguments, **named)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run
