"""A gRPC server without sockets: what all its connections share, and the protocol factory for
loop.create_server.

Rule: deadlines of all connections are checked by one sweep per second; there is no other timer,
      except for calls with a deadline of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from naiad.core.memory_budget import MemoryBudget
from naiad.keys.api_class import check_class
from naiad.transport.grpc.compression import COMPRESSION_LEVELS
from naiad.transport.grpc.fast_path import MakeFastPath
from naiad.transport.grpc.method import MakeGate, Method, Restrict, build_head
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.protocol import GrpcProtocol
from naiad.transport.grpc.status import Status
from naiad.transport.http2.limits import KIB, Http2Counters
from naiad.transport.sweep import Sweep
from naiad.transport.turn import Turn

STOP_RECEIVE_S = 1.0
"""Time at shutdown for requests of which a part has arrived."""
_ANNOUNCE_POLL_S = 0.005
_SHUTTING_DOWN = "the server is shutting down"
_READ_BYTES = 64 * KIB


class GrpcEndpoint:
    def __init__(
        self,
        methods: Iterable[Method],
        options: GrpcOptions | None = None,
        *,
        restrict: Restrict | None = None,
        make_gate: MakeGate | None = None,
        make_fast_path: MakeFastPath | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget` limits what all connections hold; None sets no limit."""
        self.make_fast_path = make_fast_path
        self.make_gate = make_gate
        self.options = options or GrpcOptions()
        self.methods = {method.path.encode(): method for method in methods}
        for method in self.methods.values():
            check_class(method.api, method.path)
        self.make_head = partial(
            build_head, methods=self.methods, restrict=restrict, make_gate=make_gate
        )
        self.clock_ns = clock_ns
        self.counters = Http2Counters()
        self.budget = budget or MemoryBudget()
        self.gzip_level = COMPRESSION_LEVELS[self.options.infer_response_compression_level]
        self.connections: set[GrpcProtocol] = set()
        self.on_forgotten: Callable[[], None] | None = None
        """Called when a connection has ended."""
        self.num_elsewhere: Callable[[], int] = lambda: 0
        """Connections that other processes serve; they count towards the limit."""
        self.is_stopping = False
        self.loop: asyncio.AbstractEventLoop
        # Shared by all connections: each read is handled before the next one begins.
        self.read_view = memoryview(bytearray(_READ_BYTES))
        self.turn = Turn()
        self._sweep = Sweep(self.connections, self._check)
        self._all_closed: asyncio.Event | None = None

    def protocol_factory(self) -> GrpcProtocol:
        self.loop = asyncio.get_running_loop()
        return GrpcProtocol(self)

    # Called by connections.

    def admit(self, connection: GrpcProtocol) -> str | None:
        """Returns the reason why the connection is refused, or None."""
        num_connections = len(self.connections) + self.num_elsewhere()
        if self.is_stopping or num_connections >= self.options.max_connections:
            self.counters.connections_refused_total += 1
            return _SHUTTING_DOWN if self.is_stopping else "too many connections"
        self.counters.connections_total += 1
        self.connections.add(connection)
        self._sweep.start(self.loop)
        return None

    def forget(self, connection: GrpcProtocol) -> None:
        self.connections.discard(connection)
        if self.on_forgotten is not None:
            self.on_forgotten()
        if not self.connections:
            self._sweep.stop()
            if self._all_closed is not None:
                self._all_closed.set()

    def _check(self, connection: GrpcProtocol) -> None:
        connection.count_memory()
        connection.deadlines.tick(self.clock_ns())

    # The end.

    async def announce_stop(self, limit_s: float) -> None:
        """Tells clients to begin nothing new on their connections. Returns when all of them have
        read it, so that what they sent before has arrived, or after `limit_s`."""
        waiting = set(self.connections)
        for connection in waiting:
            connection.drain()
        end_ns = self.clock_ns() + int(limit_s * 1e9)
        while self.clock_ns() < end_ns:
            waiting = {one for one in waiting & self.connections if not one.is_drain_final}
            if not waiting:
                return
            await asyncio.sleep(_ANNOUNCE_POLL_S)

    async def stop(self, grace_s: float) -> None:
        """Calls with a request in flight may finish within `grace_s`. The others end with
        UNAVAILABLE: at once when they wait for nothing, soon when a part of their request has
        arrived. Returns when no connection is left. The caller has closed the listening sockets.
        """
        self.is_stopping = True
        for connection in list(self.connections):
            connection.drain()
            connection.stop_calls()
        receive_s = min(STOP_RECEIVE_S, grace_s)
        if await self._wait_closed(receive_s):
            return
        for connection in list(self.connections):
            connection.stop_calls()  # calls that came while the client had not read our GOAWAY
            connection.abort_partial_calls(Status.UNAVAILABLE, _SHUTTING_DOWN)
        if await self._wait_closed(grace_s - receive_s):
            return
        for connection in list(self.connections):
            connection.abort_calls(Status.UNAVAILABLE, _SHUTTING_DOWN)
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
