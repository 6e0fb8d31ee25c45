"""The fast path of one gRPC connection: bytes of a read -> calls, without frames, events and
headers in between.

A client that calls ModelInfer repeatedly sends the same bytes each time, except for the stream id
and the data in the message. The second request of a kind is learned; later ones are compared with
it as a whole. A few kinds may alternate. Only the beginning of a large request is compared; its
last tensor is received into memory of its own.
Rule: the result is what the full path (Http2Connection, GrpcProtocol, Call) makes of each request
      when it arrives in a read of its own. A request is left to the full path, before any state has
      changed, when
      - its bytes differ, or the header table has changed;
      - a limit or a window is near, or the memory budget has no room for it;
      - it has a deadline, or its response would be compressed;
      - tracing is on, or another model serves than the one that the plan knows;
      - its key is refused or must be looked up again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from naiad.core.request import InferRequest
from naiad.errors import NaiadError
from naiad.fastpath.call import Responder, serving_model
from naiad.fastpath.grpc_arrival import Arrival
from naiad.fastpath.grpc_frames import MAX_UPDATES, UPDATE_BYTES, RequestFrames, learn_frames
from naiad.fastpath.grpc_plan import MessagePlan, MessagePlans
from naiad.fastpath.grpc_stream import FastStream
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import PREFIX_BYTES
from naiad.transport.grpc.method import RequestHead
from naiad.transport.http2.frame import (
    END_HEADERS,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW,
    WINDOW_UPDATE,
    frame_header,
)

if TYPE_CHECKING:
    from naiad.repository.model import Model
    from naiad.transport.grpc.protocol import GrpcProtocol

MakeResponder: TypeAlias = "Callable[[Call, InferRequest, MessagePlan, Model], Responder]"
Fail: TypeAlias = Callable[[Call, NaiadError], None]

_MAX_CREDIT: Final = 64
_LEARNING_COST: Final = 16
"""Credit that learning costs and fast requests earn back: a client that does not repeat itself has
one request in sixteen learned."""
_MAX_KINDS: Final = 4
"""Kinds of small requests that are known at once. All requests of a client may share one
connection, and requests for two models, or with ids of two lengths, alternate."""

_parse_header: Final = frame_header.unpack_from
_parse_update: Final = struct.Struct(">9sI").unpack_from
_CONNECTION_UPDATE: Final = frame_header.pack(4 << 8 | WINDOW_UPDATE, 0, 0)


class GrpcFastPath:
    __slots__ = (
        "_blocks",
        "_connection",
        "_credit",
        "_decoder",
        "_kinds",
        "_large",
        "_method_path",
        "_plans",
        "_sender",
        "core",
        "fail",
        "make_responder",
        "protocol",
    )

    def __init__(
        self,
        protocol: GrpcProtocol,
        plans: MessagePlans,
        method_path: str,
        make_responder: MakeResponder,
        fail: Fail,
    ) -> None:
        """`method_path` is that of ModelInfer, the one method with a fast path."""
        self.protocol = protocol
        self.core = plans.core
        self.make_responder = make_responder
        self.fail = fail
        self._plans = plans
        self._method_path = method_path
        self._connection = protocol.connection
        self._sender = protocol.sender
        self._blocks = protocol.connection.header_blocks
        self._decoder = self._blocks.decoder
        self._kinds: list[RequestFrames] = []
        """Small requests; the kind that came last is tried first."""
        self._large: RequestFrames | None = None
        self._credit = _MAX_CREDIT

    def consume(self, view: memoryview, num_bytes: int) -> int:
        """Starts the requests at the beginning of a read that are known or can be learned. Returns
        the number of bytes that they took."""
        offset = self._consume_small(view, 0, num_bytes)
        large = self._large
        if large is not None and offset < num_bytes:
            start = offset
            offset = self._consume_large(large, view, offset, num_bytes)
            if start < offset < num_bytes:  # only updates of the window were consumed
                offset = self._consume_small(view, offset, num_bytes)
        if offset < num_bytes:
            frames = self._learn(view, offset, num_bytes)
            if frames is not None and frames.tail_bytes:
                self._large = frames
                return self._consume_large(frames, view, offset, num_bytes)
            if frames is not None:
                self._add_kind(frames)
                offset = self._consume_small(view, offset, num_bytes)
        return offset

    def _add_kind(self, frames: RequestFrames) -> None:
        """Adds a kind before those that may still fit other requests; drops the kind that was not
        seen for the longest time when there are too many."""
        others = [
            kind
            for kind in self._kinds
            if kind.table_changes == frames.table_changes and kind.constants != frames.constants
        ]
        self._kinds = [frames, *others[: _MAX_KINDS - 1]]

    # Small requests.

    def _consume_small(self, view: memoryview, offset: int, num_bytes: int) -> int:
        """Consumes requests of all known kinds, in any order."""
        kinds = self._kinds
        index = 0
        while index < len(kinds) and offset < num_bytes:
            start = offset
            offset = self._consume_kind(kinds[index], view, offset, num_bytes)
            if offset == start:
                index += 1
            else:
                if index:
                    kinds.insert(0, kinds.pop(index))
                index = 1
        return offset

    def _consume_kind(
        self, frames: RequestFrames, view: memoryview, offset: int, num_bytes: int
    ) -> int:
        connection, sender = self._connection, self._sender
        max_streams = connection.room(frames.data_bytes, 2)
        send_window = sender.initial_window + frames.increment
        if self._decoder.changes != frames.table_changes or send_window > MAX_WINDOW:
            return offset
        core, plan, size, gate = self.core, frames.plan, frames.num_bytes, frames.head.gate
        account, message_bytes = self.protocol.account, frames.data_bytes - PREFIX_BYTES
        streams, last_id = connection.streams, connection.last_peer_stream_id
        count = num_updates = 0
        while count < max_streams and num_bytes - offset >= size:
            fields = frames.unpack(view, offset)
            stream_id = fields[1]
            if not self._is_request(frames, fields, last_id):
                break
            request = plan.decode(fields[frames.parts])
            model = None if request is None else serving_model(core, plan)
            if request is None or model is None:
                break
            account.free_bytes -= message_bytes
            if account.free_bytes < 0 and not account.replenish(message_bytes):
                break
            admission = None
            if gate is not None:
                admission = gate.enter_fast(self.protocol.peer, plan.model_name)
                if admission is None:
                    account.free_bytes += message_bytes
                    break
            last_id = stream_id
            count += 1
            offset += size
            stream = FastStream(
                stream_id,
                send_window,
                connection=self,
                frames=frames,
                admission=admission,
                held_bytes=message_bytes,
            )
            streams[stream_id] = stream.context = stream
            stream.start(request, model)
            if num_bytes - offset >= UPDATE_BYTES and view[offset + 3] == WINDOW_UPDATE:
                if not self._open_window(view, offset):
                    break
                num_updates += 1
                offset += UPDATE_BYTES
        if count:
            connection.opened(
                last_id,
                count,
                count * frames.data_bytes,
                num_updates + (count if frames.increment else 0),
            )
            self._earn_credit(count)
        return offset

    def _is_request(
        self, frames: RequestFrames, fields: tuple[Any, ...], last_stream_id: int
    ) -> bool:
        """The unpacked fields are a request of this kind, on a new stream."""
        stream_id: int = fields[1]
        return (
            fields[::2] == frames.constants
            and fields[3] == stream_id
            and fields[frames.last_id_index] == stream_id
            and last_stream_id < stream_id <= self._connection.goaway_last_stream_id
            and stream_id & 1 == 1
        )

    def _open_window(self, view: memoryview, offset: int) -> bool:
        """Applies an update of the connection's window. False when the frame is something else, is
        invalid, or would let waiting data go."""
        sender = self._sender
        frame, increment = _parse_update(view, offset)
        window = sender.window + increment
        if frame != _CONNECTION_UPDATE or not increment or window > MAX_WINDOW or sender.ready:
            return False
        sender.window = window
        return True

    # Large requests.

    def _consume_large(
        self, frames: RequestFrames, view: memoryview, offset: int, num_bytes: int
    ) -> int:
        """Consumes the beginning of a request whose last tensor is large; the rest is read straight
        into the tensor's memory."""
        connection, plan = self._connection, frames.plan
        send_window = self._sender.initial_window + frames.increment
        if (
            # The data is acknowledged as it arrives, as on the full path: it may make the next
            # WINDOW_UPDATE due.
            not connection.room(1, 1 + MAX_UPDATES)
            or frames.data_bytes > connection.incoming.window
            or self._decoder.changes != frames.table_changes
            or send_window > MAX_WINDOW
        ):
            return offset
        offset = self._consume_updates(view, offset, num_bytes)
        if num_bytes - offset < frames.enough_bytes:
            return offset
        fields = frames.unpack(view, offset)
        gate = frames.head.gate
        if (
            not self._is_request(frames, fields, connection.last_peer_stream_id)
            or (gate is not None and isinstance(gate.check(self.protocol.peer), NaiadError))
            or serving_model(self.core, plan) is None
            or (memory := self.core.input_buffer(plan.model_name, frames.tail_bytes)) is None
        ):
            return offset
        request = plan.decode((*fields[frames.parts], memory))
        if request is None:
            return offset
        admission = None
        if gate is not None:
            admission = gate.enter_fast(self.protocol.peer, plan.model_name)
            if admission is None:
                return offset
        offset += frames.num_bytes
        stream = FastStream(
            fields[1], send_window, connection=self, frames=frames, admission=admission
        )
        connection.opened(stream.id, 1, 0, 1 if frames.increment else 0)
        connection.streams[stream.id] = stream.context = stream
        head_bytes = frames.data_bytes - frames.tail_bytes - PREFIX_BYTES
        reader = Arrival(memory, self.protocol.account, head_bytes)
        stream.begin(request, reader, connection.limits.stream_window_bytes)
        num_missing = frames.tail_bytes - (num_bytes - offset)
        connection.incoming.begin_known(stream, frames.data_bytes, num_missing)
        self.protocol.on_arrival_begun(stream, stream, view[offset:num_bytes], frames.read_bytes)
        self._earn_credit(1)
        return num_bytes

    def _consume_updates(self, view: memoryview, offset: int, num_bytes: int) -> int:
        """Consumes updates of the connection's window. They follow the request before, whose last
        bytes are never read together with more."""
        connection = self._connection
        for _ in range(MAX_UPDATES):
            if num_bytes - offset < UPDATE_BYTES or view[offset + 3] != WINDOW_UPDATE:
                break
            if not self._open_window(view, offset):
                break
            connection.opened(connection.last_peer_stream_id, 0, 0, 1)
            offset += UPDATE_BYTES
        return offset

    # Learning.

    def _earn_credit(self, count: int) -> None:
        if self._credit < _MAX_CREDIT:
            self._credit += count

    def _learn(self, view: memoryview, offset: int, num_bytes: int) -> RequestFrames | None:
        """Learns from the request at the beginning of the bytes, if its headers came before and
        still mean the same."""
        if self._credit <= 0:
            self._credit += 1
            return None
        if (
            num_bytes - offset < 2 * HEADER_BYTES
            or view[offset + 3] != HEADERS
            or not self._connection.room(1, 1)
        ):
            return None
        length, flags, _ = _parse_header(view, offset)
        block_end = offset + HEADER_BYTES + (length >> 8)
        if flags != END_HEADERS or num_bytes - block_end < HEADER_BYTES:
            return None
        head: RequestHead | None = self._blocks.known(
            bytes(view[offset + HEADER_BYTES : block_end])
        )
        if head is None or not self._may_repeat(head):
            return None
        self._credit -= _LEARNING_COST
        limits = self._connection.limits
        max_bytes = min(
            self.protocol.options.max_message_bytes,
            min(limits.max_frame_bytes, limits.stream_window_bytes) - PREFIX_BYTES,
        )
        return learn_frames(
            bytes(view[offset:num_bytes]),
            block_end - offset,
            head,
            max_bytes,
            self._decoder.changes,
            self._plans.learn,
        )

    def _may_repeat(self, head: RequestHead) -> bool:
        method = head.method
        return (
            method is not None
            and method.path == self._method_path
            and head.timeout_ns < 0
            and not (self.protocol.gzip_level and method.is_compressed and head.accepts_gzip)
        )
