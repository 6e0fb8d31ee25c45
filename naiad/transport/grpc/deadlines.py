"""The deadlines of a connection: first request, frames, messages, idle streams, idle connection,
keepalive, age, and responses that make no progress.

In:  one `tick` per second, with the time. Out: the connection is pinged, drained or closed when
     that is due, or a call is ended; every cause is counted by name.
Rule: this file holds all the clocks of a connection, so tests need no sleeping. Only the deadline
      of a call is a timer of its own. What the clocks need is looked up at the tick; a request
      costs nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from naiad.transport.grpc.fast_path import StreamOwner
from naiad.transport.grpc.keepalive import Due, Keepalive
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import Status
from naiad.transport.http2.stream import OPEN, Stream
from naiad.transport.write_watch import Verdict, WriteWatch

if TYPE_CHECKING:
    from naiad.transport.grpc.protocol import GrpcProtocol

_S = 1_000_000_000
_MS = 1_000_000
CLOSE_LIMIT_NS = 5 * _S
"""A transport that has not written its last bytes after this time is aborted."""
DRAIN_PING_LIMIT_NS = 1 * _S

# What a stream was waiting for at a tick; see `Watched`.
_FIRST_MESSAGE: Final = 1
_REST_OF_MESSAGE: Final = 2
_NEXT_MESSAGE: Final = 3


class Watched:
    """What was seen of a stream, or of the frame in progress, and since when it has not changed."""

    __slots__ = ("_mark", "_since_ns")

    def __init__(self) -> None:
        self._mark: tuple[int, int] | None = None
        self._since_ns = 0

    def unchanged_ns(self, mark: tuple[int, int], now_ns: int) -> int:
        """Returns for how long `mark` has been the same at every tick."""
        if mark != self._mark:
            self._mark, self._since_ns = mark, now_ns
        return now_ns - self._since_ns


class ConnectionDeadlines:
    def __init__(self, protocol: GrpcProtocol, options: GrpcOptions, now_ns: int) -> None:
        self._protocol = protocol
        self._options = options
        self._made_ns = now_ns
        self._keepalive = Keepalive(options, now_ns)
        self._watch: WriteWatch | None = None
        """None before the first tick that had something to look at."""
        self._watched_bytes = -1
        """`received_bytes` of an idle connection whose client has acknowledged everything."""
        self.received_bytes = 0
        """Bytes that the connection has received."""
        self._received_at_tick = 0
        self._frame_since_ns = 0
        self._frame_start_bytes = 0
        self._idle = Watched()
        self._streams: dict[Stream, Watched] = {}
        """Streams on which the client may still send, as they were at the last tick."""
        self.closing_ns = 0
        self.drain_ns = 0

    def is_ping_abuse(self, now_ns: int) -> bool:
        protocol = self._protocol
        return self._keepalive.on_ping(
            now_ns, has_calls=bool(protocol.connection.streams), activity=protocol.sender.activity
        )

    def tick(self, now_ns: int) -> None:
        protocol = self._protocol
        if self.closing_ns:
            if now_ns - self.closing_ns > CLOSE_LIMIT_NS:
                protocol.abort()
            return
        if (
            protocol.connection.last_peer_stream_id == 0
            and now_ns - self._made_ns > self._options.request_timeout_s * _S
        ):
            protocol.give_up("first_request_timeout", "no request came in time")
            return
        if self._check_keepalive(now_ns) or self._check_age(now_ns):
            return
        self._check_streams(now_ns)
        if self._check_frame(now_ns):
            return
        self._check_idle(now_ns)
        self._check_responses(now_ns)
        if self.drain_ns and now_ns - self.drain_ns > DRAIN_PING_LIMIT_NS:
            protocol.finish_drain()
        protocol.flush()

    def _receive_limit_ns(self, num_bytes: int) -> int:
        """The time in which a frame or a message must arrive of which `num_bytes` are here: a fixed
        time, and more for what comes at a reasonable rate."""
        options = self._options
        return int((options.request_timeout_s + num_bytes / options.min_receive_bytes_per_s) * _S)

    def _check_frame(self, now_ns: int) -> bool:
        """Ends a connection whose peer began a frame or a header block and does not finish it:
        nothing else can arrive meanwhile."""
        protocol = self._protocol
        num_bytes = self.received_bytes - self._frame_start_bytes
        if (
            not protocol.connection.is_inside_frame
            or not self._frame_since_ns
            # This is more than a frame can have: the peer has begun another one since.
            or num_bytes > protocol.connection.limits.max_frame_bytes
        ):
            self._frame_start_bytes = self.received_bytes
            self._frame_since_ns = now_ns if protocol.connection.is_inside_frame else 0
            return False
        is_over = now_ns - self._frame_since_ns > self._receive_limit_ns(num_bytes)
        if is_over:
            protocol.give_up("frame_timeout", "the rest of a frame did not arrive in time")
        return is_over

    def _check_keepalive(self, now_ns: int) -> bool:
        protocol = self._protocol
        has_received = self.received_bytes != self._received_at_tick
        self._received_at_tick = self.received_bytes
        due = self._keepalive.tick(
            now_ns,
            has_received=has_received,
            has_calls=bool(protocol.connection.streams),
            activity=protocol.sender.activity,
        )
        if due is Due.PING:
            protocol.connection.ping(b"keepaliv")
        elif due is Due.CLOSE:
            protocol.give_up("keepalive_timeout", "keepalive ping was not acknowledged")
        return due is Due.CLOSE

    def _check_age(self, now_ns: int) -> bool:
        options = self._options
        if (
            not options.max_connection_age_ms
            or now_ns - self._made_ns < options.max_connection_age_ms * _MS
        ):
            return False
        self._protocol.drain()
        grace_ms = options.max_connection_age_grace_ms
        is_over = bool(grace_ms) and now_ns - self.drain_ns >= grace_ms * _MS
        if is_over:
            self._protocol.give_up("max_age", "max_age")
        return is_over

    def _check_streams(self, now_ns: int) -> None:
        protocol = self._protocol
        protocol.sender.reset_responded()
        before, self._streams = self._streams, {}
        for stream in list(protocol.connection.streams.values()):
            if stream.state == OPEN and stream.context is not None:
                watched = self._streams[stream] = before.get(stream) or Watched()
                self._check_request(stream, stream.context, watched, now_ns)

    def _check_request(
        self, stream: Stream, owner: StreamOwner, watched: Watched, now_ns: int
    ) -> None:
        reader = owner.reader
        if stream.is_paused:  # the client waits for us
            limit_ns, mark = now_ns, (0, 0)
        elif reader is not None and not reader.is_empty:
            # The reader notes when each message began to arrive, which tells messages apart.
            limit_ns = self._receive_limit_ns(reader.received_bytes)
            mark = (_REST_OF_MESSAGE, reader.start_ns)
        elif owner.is_message_due:
            limit_ns = self._receive_limit_ns(0)
            mark = (_FIRST_MESSAGE, 0)
        elif owner.is_idle and self._options.stream_idle_timeout_s:
            limit_ns = int(self._options.stream_idle_timeout_s * _S)
            mark = (_NEXT_MESSAGE, stream.unacknowledged_bytes)
        else:
            limit_ns, mark = now_ns, (0, 0)
        if watched.unchanged_ns(mark, now_ns) <= limit_ns:
            return
        if mark[0] == _NEXT_MESSAGE:
            self._protocol.count("stream_idle_timeout")
            owner.abort(
                Status.DEADLINE_EXCEEDED,
                f"the stream was idle for {self._options.stream_idle_timeout_s:g} s",
            )
        else:
            self._protocol.count("request_timeout")
            owner.abort(Status.DEADLINE_EXCEEDED, "the rest of the request did not arrive in time")
            # The rest of its frame may still come, and other calls can go on then.
            self._frame_since_ns = 0

    def _check_idle(self, now_ns: int) -> None:
        """Drains a connection without calls, so that a call which is on its way does not fail."""
        protocol = self._protocol
        num_waiting = len(protocol.connection.streams) + protocol.write_buffer_bytes()
        mark = (num_waiting, protocol.connection.last_peer_stream_id)
        idle_ns = self._idle.unchanged_ns(mark, now_ns)
        timeout_s = self._options.idle_timeout_s
        if timeout_s and not num_waiting and idle_ns > timeout_s * _S and not self.drain_ns:
            protocol.count("idle_timeout")
            protocol.drain()

    def _check_responses(self, now_ns: int) -> None:
        """Ends the connection of a client that is gone, or that for too long has read nothing of
        what waits in the transport, in the system or for a window."""
        protocol, now_s = self._protocol, now_ns / _S
        sender, watch = protocol.sender, self._watch
        is_idle = not protocol.connection.streams and not protocol.write_buffer_bytes()
        if is_idle and self._watched_bytes == self.received_bytes:
            return
        if watch is None:
            watch = self._watch = protocol.watch_client()
        elif not sender.pending_bytes and not watch.is_due(now_s):
            return
        verdict = watch.look(
            now_s, self._options.write_timeout_s, sender.pending_bytes, sender.activity
        )
        if is_idle and watch.is_clean:
            self._watched_bytes = self.received_bytes
        if verdict is not Verdict.READS:
            protocol.count("write_timeout" if verdict is Verdict.SLOW else "vanished")
            protocol.discard()
