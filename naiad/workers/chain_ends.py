"""The workers' ends of a chain (chain.py): a socket from the worker of one step of an ensemble to the worker of the next.

One packet per batch, one way: answers of the sender, as requests for the receiver. The answers of the last step go to the server.
Only small tensors go this way, and only answers of the form that the server has let through before.
Invariant: a batch is the receiver's if and only if it could be sent; until then nothing of it has been changed.
"""

from __future__ import annotations

import socket

import msgspec

from naiad.core.tensor_form import TensorForm
from naiad.core.work import PassedBatch, WorkRequest, WorkResponse
from naiad.workers.direct_calls import MAX_PACKET_BYTES

_ENCODER = msgspec.msgpack.Encoder()


class Outlet:
    """To the worker of the next step."""

    def __init__(self, form: TensorForm, outputs: list[str], fd: int) -> None:
        self._form = form
        self._outputs = outputs
        self._sock = socket.socket(fileno=fd)
        self._out = bytearray()

    def send(self, batch: int, legs: list[tuple[int, int, int]], requests: list[WorkRequest], responses: list[WorkResponse | None]) -> bool:
        """False: it did not go on, and is to be answered here."""
        form, fits, outputs = self._form, self._form.fits, self._outputs
        for response in responses:
            if response is None or response.error is not None or response.parameters or response.is_rescheduled:
                return False
            if not fits(response.outputs):
                return False
        onward = [
            WorkRequest(
                request.handle,
                request.id,
                form.take(response.outputs),
                outputs,
                request.parameters,
                request.correlation_id,
                request.flags,
                request.timeout_us,
                request.priority,
            )
            for request, response in zip(requests, responses, strict=True)
            if response is not None
        ]
        _ENCODER.encode_into(PassedBatch(batch, legs, onward), self._out)
        # Never waits: a worker that does not read is the server's to deal with.
        try:
            if len(self._out) <= MAX_PACKET_BYTES:
                self._sock.send(self._out, socket.MSG_DONTWAIT)
                return True
        except OSError:
            pass  # recalled, or full
        for response in responses:
            if response is not None:
                form.undo(response.outputs)
        return False

    def close(self) -> None:
        self._sock.close()


class Inlet:
    """From the worker of the step before."""

    def __init__(self, chain: int, fd: int) -> None:
        self.chain = chain
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(True)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._decoder = msgspec.msgpack.Decoder(PassedBatch)

    def read(self) -> PassedBatch | None:
        """None when nothing more will come: it is recalled, or the worker before is gone."""
        try:
            size = self._sock.recv_into(self._buffer)
        except ConnectionError:
            return None
        if not size:
            return None
        try:
            return self._decoder.decode(memoryview(self._buffer)[:size])
        except msgspec.DecodeError:
            return None  # the server fails what it finds missing

    def close(self) -> None:
        self._sock.close()
