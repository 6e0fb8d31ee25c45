"""HTTP/1.1 connections to one replica, kept alive and used again.

In:  `send(data, owner)`: a whole request. Out: calls to the owner, as the response arrives.
Rule: a connection carries one request at a time, and costs no task and no future once it is open.
      A response is passed on in the pieces in which it arrives; `pause` stops reading from the
      replica, so that a slow client holds at most one read.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from naiad.core.tensor import Buffer
from naiad.router.address import Address
from naiad.router.http_response import BadResponseError, HeadCache, ResponseHead, ResponseReader
from naiad.transport.tcp_watch import VANISHED_S, TcpWatch, discard

CONNECT_LIMIT_S = 3.0
IDLE_LIMIT_S = 4.0
"""Servers close idle connections, uvicorn's after 5 s. A request that meets the end of one may not
be sent again if it is not idempotent, so ours are closed first."""
_WRITE_HIGH_BYTES = 1 << 20


class ResponseOwner(Protocol):
    """Receives one response: `on_whole`, or `on_head`, `on_data` and `on_end`; or `on_lost` or
    `on_malformed`, which may come at any time and are the last call."""

    is_head_request: bool
    connection: UpstreamConnection | None
    """Set by the connection when it carries the request."""

    def on_whole(self, head: ResponseHead, data: bytes, body_start: int) -> None:
        """`data` is the whole response, whose body begins at `body_start`."""

    def on_head(self, head: ResponseHead) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        """`is_unsent`: no byte of the request has reached the replica. `is_reused`: the connection
        had served an earlier request, so that it may have ended for want of use."""

    def on_malformed(self, reason: str) -> None:
        """The replica sent something that is not a response to this request."""


class HttpPool:
    def __init__(
        self, address: Address, tls: ssl.SSLContext | None = None, max_connections: int = 1024
    ) -> None:
        self.address = address
        self.heads = HeadCache()
        self.idle: list[UpstreamConnection] = []
        self.busy: set[UpstreamConnection] = set()
        self.is_closed = False
        self._tls = tls
        self._max_connections = max_connections
        self._waiting: deque[tuple[Sequence[Buffer], ResponseOwner]] = deque()
        self._opening: dict[asyncio.Task[None], ResponseOwner] = {}

    @property
    def num_connections(self) -> int:
        return len(self.idle) + len(self.busy) + len(self._opening)

    def send(self, parts: Sequence[Buffer], owner: ResponseOwner) -> None:
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                connection.send(parts, owner)
                return
        if self.num_connections >= self._max_connections:
            self._waiting.append((parts, owner))
        else:
            self._open(parts, owner)

    def _open(self, parts: Sequence[Buffer], owner: ResponseOwner) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(parts, owner))
        self._opening[task] = owner
        task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.pop(task, None)

    async def _connect(self, parts: Sequence[Buffer], owner: ResponseOwner) -> None:
        address = self.address
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: UpstreamConnection(self),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except (OSError, TimeoutError) as error:
            owner.on_lost(
                f"cannot connect to {address.authority}: {connect_reason(error)}",
                is_unsent=True,
                is_reused=False,
            )
            return
        connection.send(parts, owner)

    def cancel(self, owner: ResponseOwner) -> None:
        """The owner, which has no connection yet, wants no response any more."""
        for task, opening in self._opening.items():
            if opening is owner:
                task.cancel()
                return
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not owner)

    def release(self, connection: UpstreamConnection) -> None:
        """The connection has no request any more and may be used again."""
        self.busy.discard(connection)
        if self.is_closed:
            connection.close()
        elif self._waiting:
            parts, owner = self._waiting.popleft()
            connection.send(parts, owner)
        else:
            connection.idle_since_s = time.monotonic()
            self.idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        self.busy.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        if self._waiting and not self.is_closed:
            self._open(*self._waiting.popleft())

    def sweep(self, now_s: float) -> None:
        """Closes connections that were idle for long or whose other end has vanished; called at
        regular times."""
        if any(connection.fail_if_vanished(now_s) for connection in list(self.busy)):
            self.retire()  # the same has probably happened to the others
        kept: list[UpstreamConnection] = []
        for connection in self.idle:
            if now_s - connection.idle_since_s > IDLE_LIMIT_S:
                connection.close()
            else:
                kept.append(connection)
        self.idle = kept

    def retire(self) -> None:
        """New requests get new connections."""
        for connection in self.idle:
            connection.close()
        self.idle.clear()
        for connection in self.busy:
            connection.is_last = True

    def fail_waiting(self, reason: str, should_fail: Callable[[ResponseOwner], bool]) -> None:
        """The replica does not respond: ends the requests without a response so far that
        `should_fail`, and uses no connection again."""
        self.retire()
        for connection in list(self.busy):
            owner = connection.owner
            if owner is not None and should_fail(owner):
                connection.fail(reason)
        waiting, self._waiting = self._waiting, deque()
        for _, owner in waiting:
            owner.on_lost(reason, is_unsent=True, is_reused=False)

    def close(self) -> None:
        """Requests in flight may finish."""
        self.is_closed = True
        for connection in self.idle:
            connection.close()
        self.idle.clear()


class UpstreamConnection(asyncio.Protocol):
    """Rule: it is used again only after the whole request has left and one whole response has come,
    and not if a byte more has come."""

    __slots__ = (
        "_has_served",
        "_is_paused",
        "_pool",
        "_reader",
        "_transport",
        "_watch",
        "idle_since_s",
        "is_last",
        "is_open",
        "owner",
    )

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._watch: TcpWatch
        self.is_open = False
        self.is_last = False
        """The request that it carries is its last."""
        self.owner: ResponseOwner | None = None
        self.idle_since_s = 0.0
        self._has_served = False
        self._is_paused = False
        self._reader = ResponseReader(pool.heads)

    def send(self, parts: Sequence[Buffer], owner: ResponseOwner) -> None:
        self.owner = owner
        owner.connection = self
        self._pool.busy.add(self)
        self._reader.begin(is_head_request=owner.is_head_request)
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def pause(self) -> None:
        if self.is_open and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.is_open:
                self._transport.resume_reading()

    def abandon(self) -> None:
        """The client has left: closing the connection tells the replica."""
        self.owner = None
        self.close()

    def fail(self, reason: str) -> None:
        owner, self.owner = self.owner, None
        self.close()
        if owner is not None:
            owner.on_lost(reason, is_unsent=False, is_reused=False)

    def fail_if_vanished(self, now_s: float) -> bool:
        silent_s = self._watch.silent_s(now_s)
        if silent_s < VANISHED_S:
            return False
        owner, self.owner = self.owner, None
        self.is_open = False
        discard(self._transport)
        if owner is not None:
            reason = f"the replica has acknowledged nothing for {silent_s:.0f} s"
            owner.on_lost(reason, is_unsent=False, is_reused=False)
        return True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_WRITE_HIGH_BYTES)
        self._watch = TcpWatch(transport)
        self.is_open = True

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_open = False
        self._pool.forget(self)
        owner, self.owner = self.owner, None
        if owner is None:
            return
        if self._reader.ends_with_connection and exc is None:
            owner.on_end()
            return
        reason = f": {connect_reason(exc)}" if exc is not None else ""
        owner.on_lost(
            f"the replica closed the connection before its response was complete{reason}",
            is_unsent=False,
            is_reused=self._has_served,
        )

    def data_received(self, data: bytes) -> None:
        owner = self.owner
        if owner is None:
            self.close()  # a replica that sends without being asked cannot be understood
            return
        reader = self._reader
        is_first = reader.head is None
        try:
            piece = reader.feed(data)
        except BadResponseError as error:
            self.owner = None
            self.close()
            owner.on_malformed(str(error))
            return
        head = reader.head
        if head is None:
            return
        if is_first:
            if reader.is_complete and (owner.is_head_request or not head.is_chunked):
                whole, body_start = reader.data, reader.body_start
                self._end(head)
                owner.on_whole(head, whole, body_start)
                return
            owner.on_head(head)
        if piece and self.owner is owner:
            owner.on_data(piece)
        if reader.is_complete and self.owner is owner:
            self._end(head)
            owner.on_end()

    def _end(self, head: ResponseHead) -> None:
        """The response is complete."""
        self.owner = None
        self._has_served = True
        self.resume()  # the last bytes may have been too much for the client
        if (
            head.is_closing
            or self.is_last
            or self._reader.has_excess
            or self._transport.get_write_buffer_size()  # the rest of the request
        ):
            self._pool.busy.discard(self)
            self.close()
        else:
            self._pool.release(self)


def connect_reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.strerror:
        return f"no response within {CONNECT_LIMIT_S:g} s"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
