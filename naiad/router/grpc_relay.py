"""One unary gRPC call on its way to a replica, and its response on the way back.

Rule: messages are passed on as bytes. Metadata, the deadline and trailers of the replica pass
      through.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.frontends.grpc.frontend import MODEL_INFER
from naiad.frontends.grpc.response import fail
from naiad.router.grpc_pool import GrpcResponseHead
from naiad.router.lost_sequence import tell_by_grpc
from naiad.router.relay import Relay, ReplicaError
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import PREFIX_BYTES, MessageReader
from naiad.transport.grpc.method import RequestHead
from naiad.transport.grpc.options import INT32_MAX
from naiad.transport.grpc.status import GrpcError, Status
from naiad.transport.http2.hpack import encode_headers

if TYPE_CHECKING:
    from collections.abc import Collection

    from naiad.router.core import ModelRouting, RouterCore
    from naiad.router.grpc_pool import GrpcUpstream
    from naiad.router.replica import Replica
    from naiad.router.sequences import SequenceStep
    from naiad.transport.http2.stream import Stream

_prefix = struct.Struct(">BI").pack
_read_length = struct.Struct(">I").unpack_from
_MAX_CACHED = 1024
_ERRORS = frozenset((Status.INTERNAL, Status.UNKNOWN, Status.DATA_LOSS))
_NO_PORT = "the replica has no gRPC port: give it one with grpc=HOST:PORT"


class CallBlocks:
    """The header blocks of calls, for replicas. Calls with the same head share them."""

    def __init__(self, key_headers: Collection[str] = (), replica_key: str = "") -> None:
        self._key_headers = frozenset(key_headers) if replica_key else frozenset()
        self._replica_key = replica_key
        self._blocks: dict[int, tuple[RequestHead, dict[str, bytes]]] = {}
        """The keys are identities of heads, which are kept so that an identity stays its own."""

    def block(self, head: RequestHead, authority: str, *, is_tls: bool) -> bytes:
        entry = self._blocks.get(id(head))
        if entry is None:
            if len(self._blocks) >= _MAX_CACHED:
                self._blocks.clear()
            entry = self._blocks[id(head)] = (head, {})
        block = entry[1].get(authority)
        if block is None:
            block = entry[1][authority] = self._render(head, authority, is_tls)
        return block

    def _render(self, head: RequestHead, authority: str, is_tls: bool) -> bytes:
        assert head.method is not None
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"https" if is_tls else b"http"),
            (b":path", head.method.path.encode()),
            (b":authority", authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"naiad-router"),
        ]
        if head.timeout_ns >= 0:
            headers.append((b"grpc-timeout", render_timeout(head.timeout_ns)))
        if self._replica_key:
            headers.append((b"authorization", f"Bearer {self._replica_key}".encode()))
        for name, value in head.metadata.items():
            if name not in self._key_headers and name != "host":
                headers.append((name.encode("latin-1"), value.encode("latin-1")))
        return encode_headers(headers)


def render_timeout(timeout_ns: int) -> bytes:
    """At most eight digits and a unit; rounded up."""
    for unit, unit_ns in ((b"n", 1), (b"u", 1_000), (b"m", 1_000_000), (b"S", 1_000_000_000)):
        count = -(-timeout_ns // unit_ns)
        if count < 10**8:
            return b"%d%b" % (count, unit)
    return b"99999999S"


class GrpcRelay(Relay):
    __slots__ = ("_blocks", "_call", "_message", "_reader", "_response", "stream", "upstream")
    is_grpc = True

    def __init__(
        self,
        core: RouterCore,
        routing: ModelRouting,
        model: str,
        version: str,
        sequence: SequenceStep | None,
        call: Call,
        message: Buffer,
        blocks: CallBlocks,
    ) -> None:
        super().__init__(core, routing, model, version, sequence)
        self._call = call
        self._message = message
        self._blocks = blocks
        self._response: Buffer | None = None
        self._reader: MessageReader | None = None
        self.stream: Stream | None = None
        self.upstream: GrpcUpstream | None = None
        call.on_cancel = self._on_cancel

    @property
    def path(self) -> str:
        return self._call.method.path

    @property
    def body(self) -> Buffer:
        return self._message

    def header(self, name: str) -> str:
        return self._call.header(name)

    def send(self, replica: Replica) -> None:
        pool = replica.grpc_pool
        if pool is None:
            # Nothing is wrong with the replica, so this is not a failure of its.
            self.on_failure(_NO_PORT, is_unsent=True, is_reused=True)
            return
        self._response = None
        self._drop_reader()
        self.stream = self.upstream = None
        address = pool.address
        pool.start(
            self._blocks.block(self._call.head, address.authority, is_tls=address.is_tls), self
        )

    @property
    def is_read(self) -> bool:
        return self.path != MODEL_INFER

    def leave(self, replica: Replica) -> None:
        if replica.grpc_pool is not None:
            replica.grpc_pool.cancel(self)

    def tell_lost(self, sequence: SequenceStep, replica: Replica) -> None:
        head = self._call.head
        tell_by_grpc(self._blocks, head, self.model, self.version, sequence, replica)

    def respond_error(self, error: NaiadError) -> None:
        self._message = b""
        if isinstance(error, ReplicaError) and error.http_status == 504:
            self._call.finish(Status.DEADLINE_EXCEEDED, error.message)
        else:
            fail(self._call, error)

    # The response; see CallOwner.

    def on_started(self) -> None:
        message = self._message
        assert self.upstream is not None
        assert self.stream is not None
        self.upstream.write(
            self.stream,
            (_prefix(0, len(message)), message),
            len(message) + PREFIX_BYTES,
            is_last=True,
        )

    def on_data(self, data: bytes | memoryview) -> None:
        size = len(data)
        if (
            self._reader is None
            and self._response is None
            and size >= PREFIX_BYTES
            and data[0] == 0
            and _read_length(data, 1)[0] == size - PREFIX_BYTES
        ):
            self._response = data[PREFIX_BYTES:]
            return
        if self._reader is None:
            self._reader = MessageReader(INT32_MAX, self._call.account)
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed or self._response is not None:
                    self._fail_response("the replica sent a message that the router cannot pass on")
                    return
                self._response = message
        except GrpcError as error:
            self._fail_response(error.message, error.status)

    def _fail_response(self, message: str, status: Status = Status.INTERNAL) -> None:
        if self.upstream is not None and self.stream is not None:
            self.upstream.cancel(self.stream)
        self.note_response(is_error=True)
        self.note_end()
        self._drop_reader()
        self._call.finish(status, message)

    def on_leaving(self) -> None:
        pass

    def on_closed(self, head: GrpcResponseHead) -> None:
        if head.is_refusal:
            self.note_refusal(head.retry_after_s)
        if self._response is None and head.is_not_admitted and self.should_pass_on():
            return
        self.note_response(is_error=head.grpc_status in _ERRORS, is_refusal=head.is_refusal)
        call, response = self._call, self._response
        if head.grpc_status == 0 and response is not None:
            if head.fields:
                call.send([response], len(response))
                call.finish(Status.OK, "", head.fields)
            else:
                call.reply([response], len(response))
        else:
            text = unquote_to_bytes(head.message).decode("utf-8", "replace")
            call.finish(head.grpc_status, text, head.fields)
        self._drop_reader()
        self._message = b""
        self.note_end()

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        self.stream = self.upstream = None
        self._drop_reader()
        self.on_failure(reason, is_unsent=is_unsent, is_reused=is_reused)

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.release()
            self._reader = None

    def _on_cancel(self) -> None:
        """The client has left, or its deadline has passed."""
        if self.is_over:
            return
        self.core.counters["cancelled"] += 1
        self.cancel_wait()
        replica = self.replica
        self.note_end()
        self.lose()
        self._drop_reader()
        if replica is not None:
            self.leave(replica)
