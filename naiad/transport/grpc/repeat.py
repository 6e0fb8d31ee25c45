"""The short way of requests that repeat: bytes of a read -> calls, without frames, events and
headers in between.

A client that calls one method again and again sends the same bytes each time, but for the stream's
id and the data in the message: HEADERS, perhaps a WINDOW_UPDATE on the stream, and one DATA frame
that ends it. The second request of a kind is learnt; those after it are compared with it as a
whole, and their answers, which are alike too, are put together from what the last one was made of.
A few kinds may take turns. Of a large request, whose last tensor no read brings as a whole, the
beginning is compared; the rest is read into memory of its own.
Rule: what comes of it is what the long way (http2_connection.py, grpc_protocol.py, grpc_call.py)
      makes of it when each request comes in a read of its own. Whatever is not ordinary is left to
      the long way before anything has changed: other bytes, a limit or a window that is near, a
      header table that has changed, a deadline, compression; and on the way back, an answer that no
      window covers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from naiad.transport.grpc.message import PREFIX_BYTES
from naiad.transport.grpc.method import RequestHead
from naiad.transport.grpc.repeat_form import MAX_UPDATES, UPDATE_BYTES, RequestForm, learn_frames
from naiad.transport.http2.frame import (
    END_HEADERS,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW,
    WINDOW_UPDATE,
    frame_header,
)

if TYPE_CHECKING:
    from naiad.transport.grpc.protocol import GrpcProtocol
    from naiad.transport.grpc.repeat_call import RepeatedCall

_CREDIT: Final = 64
_LEARNING_COSTS: Final = 16
"""Requests that go the long way for each one that is learnt, of a client that does not repeat
itself."""
_MAX_FORMS: Final = 4
"""All requests of a client may share one connection, and those of two models, or with ids of two
lengths, take turns."""

_parse_header: Final = frame_header.unpack_from
_parse_update: Final = struct.Struct(">9sI").unpack_from
_CONNECTION_UPDATE: Final = frame_header.pack(4 << 8 | WINDOW_UPDATE, 0, 0)


class Repeats:
    """The requests of one connection."""

    __slots__ = (
        "_blocks",
        "_connection",
        "_credit",
        "_decoder",
        "_forms",
        "_large",
        "_sender",
        "protocol",
    )

    def __init__(self, protocol: GrpcProtocol) -> None:
        self.protocol = protocol
        self._connection = protocol.connection
        self._sender = protocol.sender
        self._blocks = protocol.connection.header_blocks
        self._decoder = self._blocks.decoder
        self._forms: list[RequestForm] = []
        """Of small requests; the one that was taken last is tried first."""
        self._large: RequestForm | None = None
        self._credit = _CREDIT

    def receive(self, view: memoryview, num_bytes: int) -> int:
        """Takes as many requests as it can from the beginning of a read; returns how many bytes
        these were."""
        at = self._take_known(view, 0, num_bytes)
        large = self._large
        if large is not None and at < num_bytes:
            start = at
            at = self._take_large(large, view, at, num_bytes)
            if start < at < num_bytes:  # updates of the window alone
                at = self._take_known(view, at, num_bytes)
        if at < num_bytes and (form := self._learn(view, at, num_bytes)) is not None:
            if form.tail_bytes:
                self._large = form
                return self._take_large(form, view, at, num_bytes)
            self._keep(form)
            at = self._take_known(view, at, num_bytes)
        return at

    def _keep(self, form: RequestForm) -> None:
        """Before those that may still fit other requests; of too many, the one that was not taken
        for the longest time is forgotten."""
        others = [
            old
            for old in self._forms
            if old.table_changes == form.table_changes and old.constants != form.constants
        ]
        self._forms = [form, *others[: _MAX_FORMS - 1]]

    def _take_known(self, view: memoryview, at: int, num_bytes: int) -> int:
        """Small requests of all forms that are known, as they come."""
        forms = self._forms
        tried = 0
        while tried < len(forms) and at < num_bytes:
            start = at
            at = self._take(forms[tried], view, at, num_bytes)
            if at == start:
                tried += 1
            else:
                if tried:
                    forms.insert(0, forms.pop(tried))
                tried = 1
        return at

    def _take(self, form: RequestForm, view: memoryview, at: int, num_bytes: int) -> int:
        connection, sender = self._connection, self._sender
        room = connection.room(form.data_bytes, 2)
        send_window = sender.initial_window + form.increment
        if self._decoder.changes != form.table_changes or send_window > MAX_WINDOW:
            return at
        streams, last_id, max_id = (
            connection.streams,
            connection.last_peer_stream_id,
            connection.goaway_last_stream_id,
        )
        size, unpack, constants, last_id_at, make_call = (
            form.num_bytes,
            form.unpack,
            form.constants,
            form.last_id_at,
            form.message.call,
        )
        count = num_updates = 0
        while count < room and num_bytes - at >= size:
            fields = unpack(view, at)
            stream_id = fields[1]
            if (
                fields[::2] != constants
                or fields[3] != stream_id
                or fields[last_id_at] != stream_id
                or not last_id < stream_id <= max_id
                or not stream_id & 1
                or (call := make_call(self, stream_id, send_window, fields[last_id_at + 2 :: 2]))
                is None
            ):
                break
            last_id = stream_id
            count += 1
            at += size
            streams[stream_id] = call.context = call
            try:
                call.start()
            except Exception:
                call.as_call().broken()
            if num_bytes - at >= UPDATE_BYTES and view[at + 3] == WINDOW_UPDATE:
                frame, increment = _parse_update(view, at)
                window = sender.window + increment
                if (
                    frame != _CONNECTION_UPDATE
                    or not increment
                    or window > MAX_WINDOW
                    or sender.ready
                ):
                    break
                sender.window = window
                num_updates += 1
                at += UPDATE_BYTES
        if count:
            connection.opened(
                last_id,
                count,
                count * form.data_bytes,
                num_updates + (count if form.increment else 0),
            )
            if self._credit < _CREDIT:
                self._credit += count
        return at

    def _take_large(self, form: RequestForm, view: memoryview, at: int, num_bytes: int) -> int:
        """The beginning of a request whose last tensor is large: the rest of it is read straight
        into its memory."""
        connection = self._connection
        send_window = self._sender.initial_window + form.increment
        if (
            # Its data is acknowledged as it arrives, like any other's: that need not be far from
            # what the next WINDOW_UPDATE is due at.
            not connection.room(1, 1 + MAX_UPDATES)
            or form.data_bytes > connection.incoming.window
            or self._decoder.changes != form.table_changes
            or send_window > MAX_WINDOW
        ):
            return at
        at = self._take_updates(view, at, num_bytes)
        if num_bytes - at < form.enough_bytes:
            return at
        fields = form.unpack(view, at)
        stream_id = fields[1]
        last_id_at = form.last_id_at
        if (
            fields[::2] != form.constants
            or fields[3] != stream_id
            or fields[last_id_at] != stream_id
            or not connection.last_peer_stream_id < stream_id <= connection.goaway_last_stream_id
            or not stream_id & 1
            or (memory := form.message.memory(form.tail_bytes)) is None
        ):
            return at
        call: RepeatedCall | None = form.message.call(
            self, stream_id, send_window, (*fields[last_id_at + 2 :: 2], memory)
        )
        if call is None:
            return at
        at += form.num_bytes
        connection.opened(stream_id, 1, 0, 1 if form.increment else 0)
        connection.streams[stream_id] = call.context = call
        head_bytes = form.data_bytes - form.tail_bytes - PREFIX_BYTES
        call.begin(
            memory, self.protocol.endpoint.budget, head_bytes, connection.limits.stream_window_bytes
        )
        connection.incoming.begin_known(call, form.data_bytes, form.tail_bytes - (num_bytes - at))
        self.protocol.on_begun(call, view[at:num_bytes], form.read_bytes)
        if self._credit < _CREDIT:
            self._credit += 1
        return num_bytes

    def _take_updates(self, view: memoryview, at: int, num_bytes: int) -> int:
        """Of the connection's window, before a large request: they follow the one before, and its
        last bytes are never read with more."""
        sender = self._sender
        for _ in range(MAX_UPDATES):
            if num_bytes - at < UPDATE_BYTES or view[at + 3] != WINDOW_UPDATE:
                break
            frame, increment = _parse_update(view, at)
            window = sender.window + increment
            if frame != _CONNECTION_UPDATE or not increment or window > MAX_WINDOW or sender.ready:
                break
            sender.window = window
            self._connection.opened(self._connection.last_peer_stream_id, 0, 0, 1)
            at += UPDATE_BYTES
        return at

    def _learn(self, view: memoryview, at: int, num_bytes: int) -> RequestForm | None:
        """From a request at the beginning of the bytes whose headers have come before, and mean the
        same again."""
        if self._credit <= 0:
            self._credit += 1
            return None
        if (
            num_bytes - at < 2 * HEADER_BYTES
            or view[at + 3] != HEADERS
            or not self._connection.room(1, 1)
        ):
            return None
        length, flags, _ = _parse_header(view, at)
        block_end = at + HEADER_BYTES + (length >> 8)
        if flags != END_HEADERS or num_bytes - block_end < HEADER_BYTES:
            return None
        head: RequestHead | None = self._blocks.known(bytes(view[at + HEADER_BYTES : block_end]))
        if head is None or not self._may_repeat(head):
            return None
        self._credit -= _LEARNING_COSTS
        limits = self._connection.limits
        max_bytes = min(
            self.protocol.options.max_message_bytes,
            min(limits.max_frame_bytes, limits.stream_window_bytes) - PREFIX_BYTES,
        )
        return learn_frames(
            bytes(view[at:num_bytes]), block_end - at, head, max_bytes, self._decoder.changes
        )

    def _may_repeat(self, head: RequestHead) -> bool:
        method = head.method
        is_compressed = (
            self.protocol.gzip_level > 0
            and method is not None
            and method.is_compressed
            and head.accepts_gzip
        )
        return (
            method is not None
            and method.learn is not None
            and head.timeout_ns < 0
            and not is_compressed
        )
