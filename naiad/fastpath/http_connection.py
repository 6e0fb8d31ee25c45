"""The fast path of one HTTP connection: requests that repeat the connection's last one go straight
to the core, and responses that repeat the last one straight to the socket.

In:  the bytes of a read, from the connection. Out: what InferRoute and InferResponder would have
     made of them.
Rule: anything unusual is left to the full path before any state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.fastpath.call import FastCall, FastInference, Responder, serving_model
from naiad.fastpath.http_plan import HttpPlan, RequestLayout
from naiad.transport.http1.exchange import Exchange, with_header_lines
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_queue import ResponseQueue

if TYPE_CHECKING:
    from naiad.repository.model import Model

MakeResponder: TypeAlias = "Callable[[Exchange, HttpPlan, Model], Responder]"


class HttpFastPath(Exchange):
    """The exchange of every fast request of its connection: they come one after the other."""

    __slots__ = ("_call", "_core", "_gate", "_layout", "_make_responder", "_plan")

    def __init__(
        self, core: FastInference, layout: RequestLayout, make_responder: MakeResponder
    ) -> None:
        super().__init__(None, layout.head, b"")
        self._core = core
        self._gate = layout.head.route.gate
        self._layout = layout
        self._plan = layout.plan
        self._make_responder = make_responder
        self._call = FastCall(core, layout.plan, self)

    # Called by the connection.

    def consume(self, responses: ResponseQueue, data: bytes) -> int:
        request = self._layout.decode(data)
        if request is None:
            return 0
        model = serving_model(self._core, self._plan)
        if model is None:
            return 0
        num_bytes = len(data)
        account = responses.account
        account.free_bytes -= num_bytes
        if account.free_bytes < 0 and not account.replenish(num_bytes):
            return 0
        if self._gate is not None:
            admission = self._gate.enter_fast(responses.peer)
            if admission is None:
                account.free_bytes += num_bytes
                return 0
            self.admission = admission
            request.identity = admission.identity
            request.admission = admission
        self.held_bytes = num_bytes
        self.is_started = self.is_ended = False
        self._responses = responses
        responses.exchanges.append(self)
        self._call.start(request, model)
        return num_bytes

    def is_head(self, data: bytes) -> bool:
        return (
            self._layout.is_head(data)
            and not self.head.expects_continue
            and not self._core.tracing.is_on
            and (self._gate is None or self._gate.is_current)
        )

    def detach(self) -> None:
        assert self._responses is not None
        self._responses.account.free_bytes += self.held_bytes
        self.held_bytes = 0
        self._responses = None

    def disconnect(self) -> None:
        super().disconnect()
        if not self.is_ended:
            self._call.cancel()

    # Called by the call.

    def send(self, parts: Sequence[Buffer]) -> bool:
        responses = self._responses
        if responses is None or responses.is_stopping:
            return False
        self.is_started = self.is_ended = True
        if self.admission is not None:
            parts = with_header_lines(parts, self.admission.header_lines())
            self.admission.end(200)
        responses.send_whole(self, b"".join(parts))
        return True

    def fall_back(self, request: InferRequest, model: Model) -> Responder:
        return self._make_responder(self, self._plan, model)


def may_repeat(head: Head) -> bool:
    """Requests with this head may take the fast path: nothing about the response's framing is
    special, and the head is not new with every request."""
    return head.is_plain and head.is_inline and b"traceparent" not in head.headers
