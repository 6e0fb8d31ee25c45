"""The HTTP/2 stream of one request on the fast path.

Rule: the stream ends once: by `send`, or as the stream of an ordinary `Call`, which takes over when
      anything unusual happens.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.fastpath.call import FastCall, Responder
from naiad.fastpath.grpc_arrival import Arrival
from naiad.protocol.v2.grpc_request import decoupled_error
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Message
from naiad.transport.grpc.status import Fields, Status
from naiad.transport.http2.stream import CLOSED, HALF_CLOSED_REMOTE, OPEN, Stream

if TYPE_CHECKING:
    from naiad.fastpath.grpc_connection import GrpcFastPath
    from naiad.fastpath.grpc_frames import RequestFrames
    from naiad.keys.account import Admission
    from naiad.repository.model import Model

_pack_stream_id: Final = struct.Struct(">I").pack


class FastStream(Stream, kw_only=True):
    """Its own `context`, until it ends or a Call takes over."""

    receive_window: int = 0
    state: int = HALF_CLOSED_REMOTE
    has_headers: bool = True
    connection: GrpcFastPath
    frames: RequestFrames
    admission: Admission | None = None
    """The owner of the request; None where nobody needs a key."""
    call: FastCall | None = None
    """None before the start, and after the end or when a Call has taken over."""
    arriving: InferRequest | None = None
    """A large request until all of it has arrived; it has its memory already."""
    held_bytes: int = 0
    """Bytes charged to the connection's account until the stream ends."""
    reader: Arrival | None = None
    """Set while a large request arrives."""

    def start(self, request: InferRequest, model: Model) -> None:
        if self.admission is not None:
            request.identity = self.admission.identity
            request.admission = self.admission
        call = self.call = FastCall(self.connection.core, self.frames.plan, self)
        try:
            call.start(request, model)
        except Exception:
            self._to_call().fail_unexpectedly()

    # While a large request arrives; called by the protocol, as it calls a Call.

    def begin(self, request: InferRequest, reader: Arrival, receive_window: int) -> None:
        self.state = OPEN
        self.receive_window = receive_window
        self.arriving = request
        self.reader = reader

    @property
    def is_done(self) -> bool:
        return self.context is not self

    @property
    def is_message_due(self) -> bool:
        return False

    @property
    def is_idle(self) -> bool:
        return False

    def stop(self) -> None:
        """A request that has arrived gets its response."""

    def receive(self, messages: list[Message], end_stream: bool) -> None:
        request = self.arriving
        if not end_stream or request is None:
            return
        self.reader = self.arriving = None
        try:
            # Time has passed since the request began to arrive: another model may serve now.
            model = self.connection.core.model(request.model_name, request.model_version)
            if model.spec.is_decoupled:
                raise decoupled_error()
        except NaiadError as error:
            self.connection.fail(self._to_call(), error)
        else:
            self.start(request, model)

    # Called by the FastCall.

    def send(self, parts: Sequence[Buffer]) -> bool:
        """The whole response, with status OK. False when it would have to wait for a window or the
        transport, or a Call has taken over."""
        protocol = self.connection.protocol
        sender = protocol.sender
        frames = self.frames.plan.frames
        if frames is None:
            return False
        num_bytes = frames.data_bytes
        if (
            num_bytes > self.send_window
            or num_bytes > sender.window
            or num_bytes > sender.max_frame_bytes
            or sender.is_paused
            or self.context is not self
            or (self.admission is not None and self.admission.trailer_fields())
            # Frames that came with the last bytes of the request may have reset the stream before
            # the request was started.
            or self.state == CLOSED
        ):
            return False
        stream_id = _pack_stream_id(self.id)
        if frames.is_large:
            sender.out += frames.pieces(stream_id, parts)
        else:
            sender.out.append(frames.template % (stream_id, stream_id, *parts, stream_id))
        sender.out_bytes += frames.num_bytes
        sender.activity += 1
        sender.useful_frames += 1
        sender.num_finished += 1
        sender.window -= num_bytes
        if self.admission is not None:
            self.admission.end(Status.OK)
        protocol.account.free_bytes += self.held_bytes
        self.state = CLOSED
        self.context = self.call = None
        del sender.streams[self.id]
        protocol.flush_soon()
        return True

    def fall_back(self, request: InferRequest, model: Model) -> Responder:
        return self.connection.make_responder(self._to_call(), request, self.frames.plan, model)

    def _to_call(self) -> Call:
        """An ordinary Call takes over."""
        head = self.frames.head
        assert head.method is not None
        call = self.context = Call(
            self.connection.protocol, self, head, head.method, self.admission
        )
        if self.call is not None:
            call.on_cancel = self.call.cancel
        call.reader, self.reader = self.reader, None
        call.held_bytes, self.held_bytes = self.held_bytes, 0
        self.call = self.arriving = None
        return call

    # Called by the connection, as it calls a Call.

    def cancel(self) -> None:
        self._to_call().cancel()

    def abort(self, status: Status, message: str, fields: Fields = ()) -> None:
        self._to_call().abort(status, message, fields)
