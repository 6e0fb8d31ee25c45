"""The workers' ends of a lease (lease.py): a socket between the worker of the calling model and the
worker of the called one.

One packet per request; an answer in as many as it takes, the first byte of each saying whether
another follows. Only small tensors go this way, and only calls of the form that the server has let
through before: it need not be checked again.
Invariant: a request is executed if and only if it could be sent. The server ends the lease by
           shutting the lender's end for reading: from that moment nothing can be sent, and what had
           been sent is still read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TypeAlias

import msgspec

from naiad.errors import Code
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
"""Of a request; more is better off in shared memory."""
_LAST, _MORE = b"\0", b"\1"
_ENCODER = msgspec.msgpack.Encoder()

Form: TypeAlias = tuple[object, ...]


def form_of(call: CallRequest) -> Form | None:
    """Equal for calls that the server would treat alike; None for one that it must see."""
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
    form: list[object] = [call.model_name, call.model_version, *work.requested_outputs]
    for tensor in work.inputs:
        if tensor.datatype == "BYTES":
            return None
        size += len(tensor.data)
        form += (tensor.name, tensor.datatype, *tensor.shape)
    return tuple(form) if size <= MAX_DATA_BYTES else None


class BorrowedInstance:
    """The calling worker's end. Used by one thread, the one that executes."""

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
        """Its answers are so large that they are better off in shared memory."""

    def ask(self, request: WorkRequest) -> tuple[WorkResponse, DirectCall] | None:
        """None when it could not be sent: it is too large, or the instance has been given back."""
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
        answer = self._receive()
        end_ns = time.monotonic_ns()
        if answer is None:
            self._is_broken = True
            words = f"Failed to process the request(s) for model instance '{self._instance_name}', message: its worker process ended"
            failed = WorkResponse(error=WorkError(Code.INTERNAL.name, words))
            return failed, DirectCall(
                self.lease, start_ns, start_ns, end_ns, end_ns, Code.INTERNAL.name
            )
        error = answer.response.error
        call = DirectCall(
            self.lease,
            start_ns,
            answer.input_end_ns,
            answer.output_start_ns,
            end_ns,
            error.code if error is not None else "",
        )
        return answer.response, call

    def _receive(self) -> DirectResponse | None:
        buffer, whole = self._buffer, bytearray()
        while True:
            self._readable.poll()
            try:
                size = self._sock.recv_into(buffer)
            except ConnectionError:
                size = 0
            if not size:
                return None
            if buffer[0] == 0 and not whole:
                return self._decoder.decode(memoryview(buffer)[1:size])
            self.is_unfit = True
            whole += memoryview(buffer)[1:size]
            if buffer[0] == 0:
                return self._decoder.decode(whole)

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
        """A request has been read and not answered."""
        self.is_over = False
        """No more will come."""
        self.held: WorkResponse | None = None
        """A response that a sender gave before it said that it was the last."""

    def read(self) -> WorkRequest | None:
        """None when nothing more will come: the instance is recalled, or the borrower is gone."""
        try:
            size = self.sock.recv_into(self._buffer)
        except ConnectionError:
            return None
        if not size:
            return None
        try:
            request = self._decoder.decode(memoryview(self._buffer)[:size])
        except msgspec.DecodeError:
            return None  # whoever sends such a thing gets no answer
        self.is_awaited = True
        return request

    def answer(self, response: WorkResponse | None, output_start_ns: int) -> None:
        self.is_awaited = False
        words = "the model ended the request without a response"
        given = (
            response
            if response is not None
            else WorkResponse(error=WorkError(Code.INTERNAL.name, words))
        )
        data = _ENCODER.encode(DirectResponse(given, self.input_end_ns, output_start_ns))
        try:
            for at in range(0, len(data), MAX_PACKET_BYTES):
                part = memoryview(data)[at : at + MAX_PACKET_BYTES]
                self.sock.sendmsg([_MORE if at + MAX_PACKET_BYTES < len(data) else _LAST, part])
        except OSError:
            # The borrower is gone, or must not wait for what cannot be sent: both ends see the
            # socket's end.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
        if self.is_over:
            self.sock.close()

    def end(self) -> None:
        """The answer to the last request may still be given."""
        self.is_over = True
        if not self.is_awaited:
            self.sock.close()
