"""Makes unary gRPC calls, one at a time, over a connection that other channels share.

In:  `send(framed message, call)`.
Out: Listener.on_end, with the response message if should_keep_body is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from naiad.perf.channels.call import Call, ConnectError, Listener
from naiad.perf.channels.grpc_connection import GrpcConnection, SharedConnection
from naiad.perf.channels.grpc_message import PREFIX_BYTES
from naiad.transport.http2.stream import Stream


class GrpcChannel:
    def __init__(
        self,
        connection: SharedConnection,
        block: bytes,
        listener: Listener,
        *,
        should_keep_body: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`block` is the header block of every call; see request_block."""
        self.num_in_flight = 0
        self._shared = connection
        self._block = block
        self._listener = listener
        self._should_keep_body = should_keep_body
        self._clock_ns = clock_ns
        self._call: Call | None = None
        self._kept: list[bytes] = []
        self._stream: tuple[GrpcConnection, Stream] | None = None
        self._reopening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._shared.get()

    def send(self, data: bytes, call: Call) -> None:
        self._call = call
        self.num_in_flight = 1
        connection = self._shared.current
        if connection is not None and connection.is_open:
            self._start(connection, data)
        else:
            self._reopening = asyncio.get_running_loop().create_task(
                self._reopen_and_send(data, call)
            )

    def close(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
        if self._stream is not None:
            connection, stream = self._stream
            connection.cancel(stream)
            self._stream = None

    def _start(self, connection: GrpcConnection, data: bytes) -> None:
        stream = connection.start(self._block, self)
        self._stream = (connection, stream)
        connection.write(stream, data, is_last=True)

    async def _reopen_and_send(self, data: bytes, call: Call) -> None:
        try:
            connection = await self._shared.get()
        except ConnectError as error:
            call.is_lost = True
            self._finish(str(error), self._clock_ns())
            return
        finally:
            self._reopening = None
        self._start(connection, data)
        call.written_ns = self._clock_ns()

    # StreamOwner.

    def on_data(self, stream: Stream, data: bytes | memoryview, now_ns: int) -> None:
        call = self._call
        if call is not None and not call.first_byte_ns:
            call.first_byte_ns = now_ns
        if self._should_keep_body:
            self._kept.append(bytes(data))

    def on_closed(self, stream: Stream, error: str | None, now_ns: int) -> None:
        self._stream = None
        self._finish(error, now_ns)

    def _finish(self, error: str | None, now_ns: int) -> None:
        call = self._call
        payload = b"".join(self._kept)[PREFIX_BYTES:] if self._kept else None
        self._call = None
        self._kept = []
        self.num_in_flight = 0
        if call is not None:
            self._listener.on_end(call, error, payload, now_ns)
