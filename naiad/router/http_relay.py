"""One HTTP request on its way to a replica, and its response on the way back.

In:  an Exchange with the whole request. Out: the response of the replica, in the pieces in which it
     arrives; a small one as the very bytes that the replica sent.
Rule: a client that reads slowly pauses the reading from the replica. A response that breaks off
      ends the client's connection, so that nobody takes a part for the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError
from naiad.frontends.http.response import respond_error, respond_openai_error
from naiad.protocol.openai.error import OpenAiError, from_core, unknown_model
from naiad.router.http_response import ResponseHead
from naiad.router.lost_sequence import tell_by_http
from naiad.router.relay import Relay, ReplicaError
from naiad.transport.http1.exchange import Exchange

if TYPE_CHECKING:
    from naiad.router.core import ModelRouting, RouterCore
    from naiad.router.forward_head import ForwardHead
    from naiad.router.http_pool import UpstreamConnection
    from naiad.router.replica import Replica
    from naiad.router.sequences import SequenceStep
    from naiad.router.token_usage import UsageReader

_ERRORS = frozenset((500, 502, 504))
_JOIN_BYTES = 64 * 1024


class HttpRelay(Relay):
    __slots__ = ("_exchange", "_forward", "_is_openai", "_usage", "connection", "is_head_request")

    def __init__(
        self,
        core: RouterCore,
        routing: ModelRouting,
        model: str,
        version: str,
        sequence: SequenceStep | None,
        exchange: Exchange,
        forward: ForwardHead,
        usage: UsageReader | None = None,
    ) -> None:
        """`usage` counts the tokens of the response; None where nobody needs them."""
        super().__init__(core, routing, model, version, sequence)
        self._usage = usage
        self._exchange = exchange
        self._forward = forward
        self._is_openai = forward.is_openai
        self.connection: UpstreamConnection | None = None
        self.is_head_request = exchange.head.is_head
        exchange.on_disconnect(self._on_disconnect)

    @property
    def path(self) -> str:
        return self._exchange.head.path.decode("latin-1")

    @property
    def body(self) -> Buffer:
        return self._exchange.body

    def header(self, name: str) -> str:
        return self._exchange.header(name)

    @property
    def is_read(self) -> bool:
        return self._forward.is_safe

    @property
    def is_idempotent(self) -> bool:
        return self._forward.is_safe or super().is_idempotent

    def send(self, replica: Replica) -> None:
        body = self._exchange.body
        head = self._forward.render(replica.http_pool.address.authority, len(body))
        if len(body) <= _JOIN_BYTES:
            replica.http_pool.send((b"".join((head, body)),), self)
        else:
            replica.http_pool.send((head, body), self)

    def tell_lost(self, sequence: SequenceStep, replica: Replica) -> None:
        encoding = self._exchange.head.headers.get(b"content-encoding", b"")
        tell_by_http(self._forward, encoding, sequence, replica)

    def respond_error(self, error: NaiadError) -> None:
        if isinstance(error, ReplicaError):
            if self._is_openai:
                openai_error = OpenAiError(error.http_status, error.message, type="server_error")
                respond_openai_error(self._exchange, openai_error)
            else:
                self._exchange.respond_error(error.http_status, error.message)
        elif not self._is_openai:
            respond_error(self._exchange, error)
        elif error.code is Code.NOT_FOUND:
            respond_openai_error(self._exchange, unknown_model(self.model))
        else:
            respond_openai_error(self._exchange, from_core(error, is_leaving=True))

    # The response; see ResponseOwner.

    def on_whole(self, head: ResponseHead, data: bytes, body_start: int) -> None:
        self.connection = None
        if head.is_refusal:
            self.note_refusal(head.retry_after_s)
        if head.is_not_admitted and self.should_pass_on():
            return
        self.note_response(is_error=head.status in _ERRORS, is_refusal=head.is_refusal)
        exchange = self._exchange
        if self._usage is not None:
            self._usage.on_whole(data[body_start:])
        if not head.is_transparent or not exchange.respond_rendered((data,), head.status):
            size = head.content_length if self.is_head_request else len(data) - body_start
            exchange.respond_parts(head.status, head.lines, [data[body_start:]], max(size, 0))
        self.note_end()

    def on_head(self, head: ResponseHead) -> None:
        if head.is_refusal:
            self.note_refusal(head.retry_after_s)
        if head.is_not_admitted and not self.is_responding:
            connection, self.connection = self.connection, None
            if self.should_pass_on():
                if connection is not None:
                    connection.abandon()
                return
            self.connection = connection
        self.note_response(is_error=head.status in _ERRORS, is_refusal=head.is_refusal)
        exchange = self._exchange
        exchange.on_flow(self._on_flow)
        exchange.start_stream(
            head.status, head.lines, head.content_length if head.content_length >= 0 else None
        )

    def on_data(self, data: bytes) -> None:
        if self._usage is not None:
            self._usage.on_data(data)
        self._exchange.send_chunk(data)

    def on_end(self) -> None:
        self.connection = None
        self._exchange.end_stream()
        self.note_end()

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        self.connection = None
        if not self.is_responding:
            self.on_failure(reason, is_unsent=is_unsent, is_reused=is_reused)
            return
        self.core.counters["broken_streams"] += 1
        if self.replica is not None:
            self.fail_replica(self.replica, "lost")
        self.note_end()
        self._exchange.break_stream()

    def on_malformed(self, reason: str) -> None:
        self.connection = None
        if self.is_responding:
            self.on_lost(reason, is_unsent=False, is_reused=False)
        else:
            super().on_malformed(reason)

    # The client's side.

    def _on_flow(self, is_paused: bool) -> None:
        if self.connection is not None:
            if is_paused:
                self.connection.pause()
            else:
                self.connection.resume()

    def _on_disconnect(self) -> None:
        if self.is_over:
            return
        self.core.counters["cancelled"] += 1
        self.cancel_wait()
        replica = self.replica
        self.note_end()
        self.lose()
        if replica is not None:
            self.leave(replica)

    def leave(self, replica: Replica) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()
        else:
            replica.http_pool.cancel(self)
