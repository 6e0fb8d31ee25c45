"""The gRPC frontend over a FakeCore, listening on a real socket in a thread of its own, so that
blocking clients can be used."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import uvloop

from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.transport.grpc.options import GrpcOptions
from tests.fakes import FakeCore

Result = TypeVar("Result")
LIMIT_S = 120.0


class Host:
    def __init__(
        self, options: GrpcOptions | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.core = FakeCore()
        self.frontend = GrpcFrontend(self.core, options)
        self.port = 0
        self._tls = tls
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self._loop.create_server(
            self.frontend.protocol_factory, "127.0.0.1", 0, ssl=self._tls
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        await self.frontend.stop(self.grace_s)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    def begin_stop(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def ask(self, question: Callable[[], Result]) -> Result:
        """Runs `question` on the server's loop."""

        async def run() -> Result:
            return question()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(LIMIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition`, which runs on the server's loop, is true."""

        async def run() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        asyncio.run_coroutine_threadsafe(asyncio.wait_for(run(), LIMIT_S), self._loop).result(
            LIMIT_S + 1
        )


@contextmanager
def hosted(options: GrpcOptions | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Host]:
    host = Host(options, tls)
    host.start()
    try:
        yield host
    finally:
        host.begin_stop(0.0)
        host.join()
        assert host.frontend.num_connections == 0
        host.core.requests.clear()
        host.core.buffers.clear()
        host.core.held.clear()
        assert host.frontend._endpoint.budget.used_bytes == 0
