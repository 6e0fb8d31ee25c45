"""A gRPC server without sockets: what all its connections share, and the protocol factory for
loop.create_server.

The only timer of the transport is here: a tick per second on which every connection checks its
deadlines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from naiad.transport.grpc.compression import COMPRESSION_LEVELS
from naiad.transport.grpc.fast_path import MakeFastPath
from naiad.transport.grpc.message import ReceiveBudget
from naiad.transport.grpc.method import Guard, Method, build_head
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol
from naiad.transport.grpc.status import Status
from naiad.transport.http2.limits import KIB, Http2Counters

TICK_S = 1.0
_READ_BYTES = 64 * KIB


class GrpcEndpoint:
    def __init__(
        self,
        methods: Iterable[Method],
        options: GrpcOptions | None = None,
        *,
        guard: Guard | None = None,
        make_fast_path: MakeFastPath | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.make_fast_path = make_fast_path
        self.options = options or GrpcOptions()
        self.methods = {method.path.encode(): method for method in methods}
        self.make_head = partial(build_head, methods=self.methods, guard=guard)
        self.clock_ns = clock_ns
        self.counters = Http2Counters()
        self.budget = ReceiveBudget(self.options.max_buffered_request_bytes)
        self.gzip_level = COMPRESSION_LEVELS[self.options.infer_response_compression_level]
        self.connections: set[GrpcProtocol] = set()
        self.is_stopping = False
        self.loop: asyncio.AbstractEventLoop
        # Shared by all connections: each read is handled before the next one begins.
        self.read_view = memoryview(bytearray(_READ_BYTES))
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    def protocol_factory(self) -> GrpcProtocol:
        self.loop = asyncio.get_running_loop()
        return GrpcProtocol(self)

    # Called by connections.

    def admit(self, connection: GrpcProtocol) -> str | None:
        """Returns the reason why the connection is refused, or None."""
        if self.is_stopping or len(self.connections) >= self.options.max_connections:
            self.counters.connections_refused_total += 1
            return "the server is shutting down" if self.is_stopping else "too many connections"
        self.counters.connections_total += 1
        self.connections.add(connection)
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)
        return None

    def forget(self, connection: GrpcProtocol) -> None:
        self.connections.discard(connection)
        if not self.connections:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._all_closed is not None:
                self._all_closed.set()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._tick)
        now_ns = self.clock_ns()
        for connection in list(self.connections):
            connection.deadlines.tick(now_ns)

    # The end.

    async def stop(self, grace_s: float) -> None:
        """Calls in flight may finish within `grace_s`; then they fail with UNAVAILABLE. Returns
        when no connection is left. The caller has closed the listening sockets.
        """
        self.is_stopping = True
        for connection in list(self.connections):
            connection.drain()
        if await self._wait_closed(grace_s):
            return
        for connection in list(self.connections):
            connection.abort_calls(Status.UNAVAILABLE, "the server is shutting down")
        if not await self._wait_closed(1.0):
            for connection in list(self.connections):
                connection.abort()
            await self._wait_closed(1.0)

    async def _wait_closed(self, timeout_s: float) -> bool:
        if self.connections:
            self._all_closed = asyncio.Event()
            try:
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
            except TimeoutError:
                return False
        return True
