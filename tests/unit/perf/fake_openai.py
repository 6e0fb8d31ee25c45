"""A small OpenAI-style server for tests: chat completions and completions, streamed or not.

Each word of the response is one chunk. The field `trouble` of a request selects a failure: error
(HTTP 429), html (a page of another server with status 200), broken (an error event in the middle),
cut (the connection ends in the middle) or slow_start (the first word waits for `release`).
`python -m tests.unit.perf.fake_openai` runs the server and prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

Headers = dict[str, str]


class FakeOpenAi:
    def __init__(self, *, has_usage: bool = True, delay_s: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[Headers] = []
        self.port = 0
        self.release = asyncio.Event()
        self._has_usage = has_usage
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None] | None] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes all connections. The garbage collector would report an open one in another
        test."""
        assert self._server is not None
        self._server.close()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve_requests(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _serve_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.requests.append(body)
                self.headers.append(headers)
                self.paths.append(head[0].split()[1])
                if not await self._respond(writer, body):
                    break

    async def _respond(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        """Returns False if the connection must be closed."""
        trouble = body.get("trouble")
        if trouble == "error":
            writer.write(
                _whole(429, {"error": {"message": "too many requests", "type": "rate_limit"}})
            )
            return True
        if trouble == "html":
            page = b"<html>Welcome</html>"
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(page)}"
            writer.write(head.encode() + b"\r\n\r\n" + page)
            return True
        words = [f"w{number} " for number in range(int(body.get("max_tokens", 4)))]
        usage = {"prompt_tokens": len(_prompt(body).split()), "completion_tokens": len(words)}
        if not body.get("stream"):
            writer.write(
                _whole(
                    200,
                    {"choices": [_part(body, "message", "".join(words))]}
                    | ({"usage": usage} if self._has_usage else {}),
                )
            )
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\n"
            b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if trouble == "slow_start":
            await self.release.wait()
        async for event in self._events(body, words, usage):
            if event == "cut":
                return False
            writer.write(_chunk(f"data: {event}\n\n".encode()))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True

    async def _events(
        self, body: dict[str, Any], words: list[str], usage: dict[str, int]
    ) -> AsyncIterator[str]:
        yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number, word in enumerate(words):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if number == 1 and body.get("trouble") == "broken":
                yield json.dumps({"error": {"message": "the engine died"}})
                return
            if number == 1 and body.get("trouble") == "cut":
                yield "cut"
            yield json.dumps({"choices": [_part(body, "delta", word)]})
        if self._has_usage and body.get("stream_options", {}).get("include_usage"):
            yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"


def _prompt(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"] if "messages" in body else body["prompt"])


def _part(body: dict[str, Any], name: str, text: str) -> dict[str, Any]:
    return {name: {"content": text}} if "messages" in body else {"text": text}


def _whole(status: int, document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def main() -> None:
    server = FakeOpenAi(delay_s=0.01)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
