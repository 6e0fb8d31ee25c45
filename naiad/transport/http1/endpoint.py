"""An HTTP/1.1 endpoint: what the connections of one listening port share, and how they end.

In:  a router (head -> Route), limits. Out: `protocol_factory` for loop.create_server, counters,
     `stop`.
Rule: no framework and no task per request; deadlines of all connections are checked by one sweep
      per second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from naiad.core.memory_budget import MemoryBudget
from naiad.core.seen_keys import SeenKeys
from naiad.transport.http1.connection import STOPPING, Http1Connection
from naiad.transport.http1.flush import FlushScheduler
from naiad.transport.http1.head import Head, parse_head
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.http1.route import Router
from naiad.transport.sweep import Sweep
from naiad.transport.turn import Turn

_SCRATCH_BYTES = 64 * 1024
_MAX_CACHED_HEADS = 1024
_MAX_CACHED_HEAD_BYTES = 1024
_LARGE_BODY_BYTES = 64 * 1024
"""The head of a larger body is cached when it comes the second time."""
_MAX_REFUSED_CONNECTIONS = 1024
"""Connections beyond the limit that may be open at once, each to receive one error response."""
STOP_RECEIVE_S = 1.0
"""Time at shutdown for requests of which a part has arrived."""
STOP_CLOSE_S = 1.0
"""Time at shutdown for clients to read the error responses to such requests."""
STOP_ERROR_S = 0.5
"""Time for clients to read the errors of requests that did not end in time."""


class Http1Endpoint:
    def __init__(
        self,
        router: Router,
        limits: Http1Limits,
        clock_s: Callable[[], float] = time.monotonic,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget` limits what all connections hold; None sets no limit."""
        self.limits = limits
        self.budget = budget or MemoryBudget()
        self.flush_scheduler: FlushScheduler
        self.connections: set[Http1Connection] = set()
        self._seen_heads = SeenKeys()
        self.heads: dict[bytes, Head] = {}
        """Heads by their bytes: clients repeat their heads, and parsing one costs more than the
        rest of a small request."""
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        """Shared by all connections: each read is copied out of it before the next one."""
        self.now_s = clock_s()
        """The time of the latest sweep: exact enough for deadlines and free to read."""
        self.num_requests = 0
        self.num_connections = 0
        """The number of connections accepted since the start."""
        self.num_refused = 0
        self.num_slow_readers = 0
        self.faults: Counter[str] = Counter()
        """Deadlines that clients have passed, by cause."""
        self.move: Callable[[Http1Connection, bytes], None] = _refuse_move
        """Moves a connection to another process, together with bytes that were received and not
        handled. The connection is not used here any more."""
        self.on_forgotten: Callable[[], None] | None = None
        """Called when a connection has ended."""
        self.num_elsewhere: Callable[[], int] = lambda: 0
        """Connections that other processes serve; they count towards the limit."""
        self._router = router
        self._clock_s = clock_s
        self.loop: asyncio.AbstractEventLoop
        self.turn = Turn()
        self._sweep = Sweep(self.connections, self._check)
        self._is_stopping = False
        self._all_closed: asyncio.Event | None = None

    def protocol_factory(self) -> Http1Connection:
        """Meant for `loop.create_server`; must be called on the loop that serves."""
        if not self.connections:
            self.loop = asyncio.get_running_loop()
            self.flush_scheduler = FlushScheduler(self.loop)
            self.now_s = self._clock_s()
        return Http1Connection(self)

    def read_head(self, data: bytes) -> Head:
        """Raises HeadError."""
        head = parse_head(data, self.limits)
        head.route = self._router(head)
        max_bytes = head.route.body_limit(self.limits.max_body_bytes)
        head.is_inline = not head.is_chunked and head.content_length <= min(
            max_bytes, self.limits.large_body_bytes
        )
        # A traceparent or an id is new with every request: such heads would only push out heads
        # that repeat. So do the lengths of large bodies, if they never come again.
        if (
            len(data) <= _MAX_CACHED_HEAD_BYTES
            and b"traceparent" not in head.headers
            and b"x-request-id" not in head.headers
            and (head.content_length <= _LARGE_BODY_BYTES or self._seen_heads.add(data))
        ):
            if len(self.heads) >= _MAX_CACHED_HEADS:
                self.heads.clear()
            self.heads[data] = head
        return head

    # Connections.

    def admit(self, connection: Http1Connection) -> str | None:
        """Returns the reason why the connection is refused, or None when it is admitted."""
        self.connections.add(connection)
        self.num_connections += 1
        self._sweep.start(self.loop)
        if self._is_stopping:
            return STOPPING
        return (
            "maximum number of connections reached"
            if len(self.connections) + self.num_elsewhere() > self.limits.max_connections
            else None
        )

    @property
    def is_flooded(self) -> bool:
        return (
            len(self.connections) + self.num_elsewhere()
            > self.limits.max_connections + _MAX_REFUSED_CONNECTIONS
        )

    def forget(self, connection: Http1Connection) -> None:
        self.connections.discard(connection)
        if self.on_forgotten is not None:
            self.on_forgotten()
        if not self.connections:
            self._sweep.stop()
            if self._all_closed is not None:
                self._all_closed.set()

    def sweep(self) -> None:
        for connection in list(self.connections):
            self._check(connection)

    def _check(self, connection: Http1Connection) -> None:
        self.now_s = self._clock_s()
        connection.count_memory()
        connection.check_deadlines(self.now_s)

    # The end.

    async def stop(self, grace_s: float) -> None:
        """Finishes requests under way and closes idle connections. A request of which only a part
        has arrived soon gets an error response, and so does what is left after `grace_s`. The
        caller has closed the listening sockets."""
        self._is_stopping = True
        end_s = self._clock_s() + grace_s
        for connection in list(self.connections):
            connection.stop()
        if not await self._closes_within(min(STOP_RECEIVE_S, grace_s)):
            for connection in list(self.connections):
                connection.refuse_partial_request()
            if not await self._closes_within(min(STOP_CLOSE_S, end_s - self._clock_s())):
                for connection in list(self.connections):
                    connection.abort_if_done()
                if not await self._closes_within(end_s - self._clock_s()):
                    await self._cut_short()
        self._sweep.stop()

    async def _cut_short(self) -> None:
        for connection in list(self.connections):
            connection.cut_short()
        if not await self._closes_within(STOP_ERROR_S):
            for connection in list(self.connections):
                connection.abort()
            await self._closes_within(None)

    async def _closes_within(self, limit_s: float | None) -> bool:
        """Returns False if a connection is still open after `limit_s`."""
        if self.connections:
            self._all_closed = asyncio.Event()
            try:
                await asyncio.wait_for(
                    self._all_closed.wait(), None if limit_s is None else max(limit_s, 0.0)
                )
            except TimeoutError:
                return False
        return True


def _refuse_move(connection: Http1Connection, data: bytes) -> None:
    """Stands in until somebody else can serve connections; no route of this endpoint leaves."""
    connection.abort()
