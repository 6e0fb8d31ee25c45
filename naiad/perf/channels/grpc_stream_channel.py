"""Sends requests over one ModelStreamInfer stream and matches responses by request id.

In:  `send(message, call)`. The id is inserted into the prepared message where protobuf's field
     order has it.
Out: Listener.on_response for each response, on_end for the response with the final flag.
Rule: an error ends the request that it names, or the oldest request if it names none. A broken
      stream ends all requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from naiad.pb.grpc_service_pb2 import ModelStreamInferResponse
from naiad.perf.channels.call import Call, ConnectError, Listener
from naiad.perf.channels.grpc_connection import GrpcConnection, SharedConnection
from naiad.perf.channels.grpc_message import MessageAssembler, frame
from naiad.perf.report.failure_text import one_line
from naiad.transport.http2.stream import Stream

_ID_FIELD = b"\x1a"
"""Field 3 of ModelInferRequest, length-delimited."""


class GrpcStreamChannel:
    def __init__(
        self,
        connection: SharedConnection,
        block: bytes,
        listener: Listener,
        *,
        is_decoupled: bool,
        encoding: str = "",
        head_bytes: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Only with `is_decoupled` may a request have more than one response."""
        self._shared = connection
        self._block = block
        self._listener = listener
        self._is_decoupled = is_decoupled
        self._encoding = encoding
        self._head_bytes = head_bytes
        self._clock_ns = clock_ns
        self._calls: dict[str, Call] = {}
        self._next_id = 0
        self._stream: tuple[GrpcConnection, Stream] | None = None
        self._assembler = MessageAssembler()
        self._reopening: set[asyncio.Task[None]] = set()

    @property
    def num_in_flight(self) -> int:
        return len(self._calls)

    async def open(self) -> None:
        await self._shared.get()

    def send(self, data: bytes, call: Call) -> None:
        self._next_id += 1
        request_id = str(self._next_id)
        self._calls[request_id] = call
        head_bytes = self._head_bytes
        message = b"".join(
            (
                data[:head_bytes],
                _ID_FIELD,
                bytes((len(request_id),)),
                request_id.encode(),
                data[head_bytes:],
            )
        )
        if self._stream is not None:
            connection, stream = self._stream
            connection.write(stream, frame(message, self._encoding), is_last=False)
            return
        current = self._shared.current
        if current is not None and current.is_open:
            self._start(current, message)
        else:
            task = asyncio.get_running_loop().create_task(self._reopen_and_send(message, call))
            self._reopening.add(task)
            task.add_done_callback(self._reopening.discard)

    def close(self) -> None:
        for task in self._reopening:
            task.cancel()
        if self._calls:
            self._drop_stream()
        elif self._stream is not None:
            connection, stream = self._stream
            self._stream = None
            connection.finish(stream)

    def _start(self, connection: GrpcConnection, message: bytes) -> None:
        stream = connection.start(self._block, self)
        self._stream = (connection, stream)
        self._assembler = MessageAssembler()
        connection.write(stream, frame(message, self._encoding), is_last=False)

    async def _reopen_and_send(self, message: bytes, call: Call) -> None:
        try:
            connection = await self._shared.get()
        except ConnectError as error:
            call.is_lost = True
            self._end_all(str(error), self._clock_ns())
            return
        if self._stream is None:
            self._start(connection, message)
        else:
            open_connection, stream = self._stream
            open_connection.write(stream, frame(message, self._encoding), is_last=False)
        call.written_ns = self._clock_ns()

    # StreamOwner.

    def on_data(self, stream: Stream, data: bytes | memoryview, now_ns: int) -> None:
        for message in self._assembler.feed(data):
            try:
                decoded = ModelStreamInferResponse.FromString(message)
            except DecodeError:
                self._drop_stream()
                self._end_all("the server sent a message that cannot be decoded", now_ns)
                return
            self._on_message(decoded, now_ns)

    def on_closed(self, stream: Stream, error: str | None, now_ns: int) -> None:
        self._stream = None
        self._end_all(error or "the server ended the stream", now_ns)

    def _on_message(self, message: ModelStreamInferResponse, now_ns: int) -> None:
        response = message.infer_response
        request_id = response.id or next(iter(self._calls), "")
        call = self._calls.get(request_id)
        if call is None:
            return
        if not call.first_byte_ns:
            call.first_byte_ns = now_ns
        if message.error_message:
            del self._calls[request_id]
            self._listener.on_end(call, one_line(message.error_message), None, now_ns)
            return
        is_final = not self._is_decoupled or response.parameters["triton_final_response"].bool_param
        if response.outputs or not is_final:
            self._listener.on_response(call, response, now_ns)
        if is_final:
            del self._calls[request_id]
            self._listener.on_end(call, None, None, now_ns)

    def _drop_stream(self) -> None:
        if self._stream is not None:
            connection, stream = self._stream
            self._stream = None
            connection.cancel(stream)

    def _end_all(self, error: str, now_ns: int) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._listener.on_end(call, error, None, now_ns)
