"""The deadlines of a connection: first request, keepalive, age, requests and responses that make
no progress.

In:  one `tick` per second, with the time. Out: the connection is pinged, drained or closed when
     that is due; every cause is counted by name.
Rule: this file holds all the clocks of a connection, so tests need no sleeping. Only the deadline
      of a call is a timer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.transport.grpc.fast_path import StreamOwner
from naiad.transport.grpc.keepalive import Due, Keepalive
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import Status

if TYPE_CHECKING:
    from naiad.transport.grpc.protocol import GrpcProtocol

_S = 1_000_000_000
_MS = 1_000_000
CLOSE_LIMIT_NS = 5 * _S
"""A transport that has not written its last bytes after this time is aborted."""
DRAIN_PING_LIMIT_NS = 1 * _S


class ConnectionDeadlines:
    def __init__(self, protocol: GrpcProtocol, options: GrpcOptions, now_ns: int) -> None:
        self._protocol = protocol
        self._options = options
        self._made_ns = now_ns
        self._keepalive = Keepalive(options, now_ns)
        self._progress = (0, 0)
        self._progress_ns = now_ns
        self.has_received = False
        """Bytes have arrived since the last tick."""
        self.partial: set[StreamOwner] = set()
        """Owners of streams on which a message has arrived in part."""
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
            and now_ns - self._made_ns > self._options.first_request_timeout_s * _S
        ):
            protocol.give_up("first_request_timeout", "no request came in time")
            return
        if self._check_keepalive(now_ns) or self._check_age(now_ns):
            return
        self._check_requests(now_ns)
        self._check_responses(now_ns)
        protocol.sender.reset_responded()
        if self.drain_ns and now_ns - self.drain_ns > DRAIN_PING_LIMIT_NS:
            protocol.finish_drain()
        protocol.flush()

    def _check_keepalive(self, now_ns: int) -> bool:
        protocol = self._protocol
        has_received, self.has_received = self.has_received, False
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

    def _check_requests(self, now_ns: int) -> None:
        for call in list(self.partial):
            reader = call.reader
            if call.is_done or reader is None:
                self.partial.discard(call)
            elif call.seen_bytes != reader.received_bytes or not call.seen_ns:
                call.seen_bytes, call.seen_ns = reader.received_bytes, now_ns
            elif now_ns - call.seen_ns > self._options.receive_stall_timeout_s * _S:
                self._protocol.count("receive_stall")
                call.abort(
                    Status.DEADLINE_EXCEEDED, "the rest of the request did not arrive in time"
                )

    def _check_responses(self, now_ns: int) -> None:
        """Aborts a connection when neither the transport nor any window has accepted a byte of what
        waits for too long."""
        protocol = self._protocol
        waiting = protocol.sender.pending_bytes + protocol.write_buffer_bytes()
        progress = (protocol.sender.activity, waiting)
        if not waiting or progress != self._progress:
            self._progress, self._progress_ns = progress, now_ns
        elif now_ns - self._progress_ns > self._options.send_stall_timeout_s * _S:
            protocol.count("send_stall")
            protocol.abort()
