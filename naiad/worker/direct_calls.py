"""The workers' ends of a lease (naiad.instances.lease): a socket between the worker of the calling
model and the worker of the called one.

A request is one packet. A response is one or more packets, and the first byte of each says whether
another follows. Only small tensors are sent like this, and only calls whose signature the server
has accepted before, so that they need no check.
Invariant: a request is executed if and only if it could be sent. The server ends the lease by
           shutting the lender's end for reading: after that nothing can be sent, and what had been
           sent is still read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TypeAlias

import msgspec

from naiad.errors import Code
from naiad.ipc.framing import NOT_DECODED
from naiad.ipc.work import (
    CallRequest,
    DirectCall,
    DirectResponse,
    WorkError,
    WorkRequest,
    WorkResponse,
)

MAX_PACKET_BYTES = 60_000
MAX_DATA_BYTES = 32_768
"""The limit for the tensors of a request. Larger ones go through the server, in shared memory."""
REST_LIMIT_MS = 10_000
"""How long the next packet of a response may take."""
_LAST, _MORE = b"\0", b"\1"
_ENCODER = msgspec.msgpack.Encoder()

Signature: TypeAlias = tuple[object, ...]


def signature_of(call: CallRequest) -> Signature | None:
    """Equal for calls that the server would treat alike; None for a call that the server must
    see."""
    work = call.request
    if (
        work.correlation_id
        or work.flags
        or work.timeout_us
        or work.priority
        or work.trace_id
        or call.is_decoupled
    ):
        return None
    size = 0
    signature: list[object] = [call.model_name, call.model_version, *work.requested_outputs]
    for tensor in work.inputs:
        if tensor.datatype == "BYTES":
            return None
        size += len(tensor.data)
        signature += (tensor.name, tensor.datatype, *tensor.shape)
    return tuple(signature) if size <= MAX_DATA_BYTES else None


class BorrowedInstance:
    """The calling worker's end. Only the thread that executes uses it."""

    def __init__(self, lease: int, instance_name: str, fd: int) -> None:
        self.lease = lease
        self._instance_name = instance_name
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(True)
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._out = bytearray()
        self._decoder = msgspec.msgpack.Decoder(DirectResponse)
        self._is_broken = False
        self.is_unfit = False
        """The responses are so large that calls should go through the server, in shared memory."""

    def call(self, request: WorkRequest) -> tuple[WorkResponse, DirectCall] | None:
        """None when the request could not be sent: it is too large, or the instance has been
        recalled."""
        request.handle = self.lease
        _ENCODER.encode_into(request, self._out)
        if len(self._out) > MAX_PACKET_BYTES:
            self._out.clear()
            return None
        start_ns = time.monotonic_ns()
        try:
            self._sock.send(self._out)
        except OSError:
            self._is_broken = True
            return None
        received = self._receive()
        end_ns = time.monotonic_ns()
        if received is None:
            self._is_broken = True
            message = (
                f"Failed to process the request(s) for model instance '{self._instance_name}', "
                "message: its worker process ended"
            )
            failed = WorkResponse(error=WorkError(Code.INTERNAL.name, message))
            return failed, DirectCall(
                self.lease, start_ns, start_ns, end_ns, end_ns, Code.INTERNAL.name
            )
        error = received.response.error
        call = DirectCall(
            self.lease,
            start_ns,
            received.input_end_ns,
            received.output_start_ns,
            end_ns,
            error.code if error is not None else "",
        )
        return received.response, call

    def _receive(self) -> DirectResponse | None:
        buffer, whole = self._buffer, bytearray()
        while True:
            # A model may take long, but what it has begun to send goes on.
            if not self._readable.poll(REST_LIMIT_MS if whole else None):
                return None
            try:
                size = self._sock.recv_into(buffer)
            except ConnectionError:
                size = 0
            if not size:
                return None
            is_last = buffer[0] == 0
            try:
                if is_last and not whole:
                    return self._decoder.decode(memoryview(buffer)[1:size])
                self.is_unfit = True
                whole += memoryview(buffer)[1:size]
                if is_last:
                    return self._decoder.decode(whole)
            except NOT_DECODED:
                return None

    def is_over(self) -> bool:
        if self._is_broken:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._sock.close()


class LentInstance:
    """The called worker's end."""

    def __init__(self, lease: int, fd: int) -> None:
        self.lease = lease
        self.sock = socket.socket(fileno=fd)
        self.sock.setblocking(True)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._decoder = msgspec.msgpack.Decoder(WorkRequest)
        self.input_end_ns = 0
        self.is_awaited = False
        """A request has been read and has had no response."""
        self.is_over = False
        """No further request will come."""
        self.held: WorkResponse | None = None
        """A response from a sender that has not said yet that it was the last."""

    def read(self) -> WorkRequest | None:
        """None when no further request will come: the instance is recalled, or the borrower is
        gone."""
        try:
            size = self.sock.recv_into(self._buffer)
        except ConnectionError:
            return None
        if not size:
            return None
        try:
            request = self._decoder.decode(memoryview(self._buffer)[:size])
        except NOT_DECODED:
            return None  # a borrower that sends such a packet gets no response
        self.is_awaited = True
        return request

    def respond(self, response: WorkResponse | None, output_start_ns: int) -> None:
        self.is_awaited = False
        if response is None:
            message = "the model ended the request without a response"
            response = WorkResponse(error=WorkError(Code.INTERNAL.name, message))
        data = _ENCODER.encode(DirectResponse(response, self.input_end_ns, output_start_ns))
        try:
            for start in range(0, len(data), MAX_PACKET_BYTES):
                end = start + MAX_PACKET_BYTES
                part = memoryview(data)[start:end]
                self.sock.sendmsg([_MORE if end < len(data) else _LAST, part])
        except OSError:
            # The borrower is gone, or it must not wait for a response that cannot be sent. Both
            # ends see the end of the socket.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
        if self.is_over:
            self.sock.close()

    def end(self) -> None:
        """The response to the last request may still be sent."""
        self.is_over = True
        if not self.is_awaited:
            self.sock.close()
