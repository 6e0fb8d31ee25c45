"""How every endpoint hands a request to the core: trace it if it is sampled, start it, deliver its
responses, cancel it when its client goes away.

In:  a decoded InferRequest and the Origin that it came from. Out: responses, at the consumer.
Rule: only this file starts a trace; a request that the core refuses leaves none.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

from naiad.core.request import InferRequest
from naiad.core.response import Consumer, InferResponse, ResponseStream
from naiad.core.trace import TraceGroup
from naiad.errors import NaiadError
from naiad.frontends.core import Inference
from naiad.frontends.token_estimate import estimate_tokens, is_language
from naiad.keys.account import Admission
from naiad.keys.guard import unknown_model
from naiad.trace.recent_traces import HEADER as TRACE_HEADER
from naiad.trace.tracing import Tracing
from naiad.trace.w3c import read_parent

if TYPE_CHECKING:
    from naiad.repository.model import Model

_RECEIVE = {"HTTP": "HTTP_RECV", "GRPC": "GRPC_WAITREAD"}
"""Triton's names for the time in which a request is received."""


class Origin(Protocol):
    """Where a request came from: an HTTP exchange, a gRPC call, or one message of a gRPC stream."""

    @property
    def trace_name(self) -> str:
        """The transport as Triton's traces name it: HTTP or GRPC."""
        ...

    @property
    def receive_start_ns(self) -> int:
        """When the request began to arrive; 0 when it arrived in one piece."""
        ...

    @property
    def admission(self) -> Admission | None:
        """The owner of the request and what it may use; None where nobody needs an API key."""
        ...

    def header(self, name: str) -> str:
        """The value of a header by its lower-case name; empty when the client did not send it."""
        ...

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """The callback runs if the client goes away before the response is complete."""
        ...


def submit(
    core: Inference,
    request: InferRequest,
    consumer: Consumer,
    origin: Origin,
    *,
    model: Model | None = None,
    on_accepted: Callable[[ResponseStream], None] | None = None,
) -> ResponseStream:
    """Raises NaiadError as the core does, and for what the request's key may not do.

    `model` is what the request names, where the caller has just looked it up. `on_accepted` runs
    before the first response is delivered: a model may respond before this function returns.
    """
    if origin.admission is not None:
        try:
            _authorize(core, request, origin.admission, model)
        except NaiadError:
            core.break_sequence(request)
            raise
    group = start_trace(core.tracing, request, origin) if core.tracing.is_on else None
    if group is None:
        stream = core.infer(request, model)
    else:
        request.trace = group.new_trace()
        try:
            stream = core.infer(request, model)
        except NaiadError:
            group.discard()
            raise
        consumer = traced(group, consumer, origin.trace_name)
    if on_accepted is not None:
        on_accepted(stream)
    stream.deliver_to(consumer)
    origin.on_disconnect(stream.cancel)
    return stream


def _authorize(
    core: Inference, request: InferRequest, admission: Admission, model: Model | None
) -> None:
    """Raises NaiadError for a model that the key may not see, and for tokens beyond its limits."""
    identity = request.identity = admission.identity
    request.admission = admission
    admission.note_model(request.model_name)
    if not identity.may_see(request.model_name):
        raise unknown_model(request.model_name)
    if model is None:
        model = core.model(request.model_name, request.model_version)
    if admission.needs_tokens and is_language(model):
        admission.reserve(estimate_tokens(request))
    if model.spec.shows_api_key:
        request.parameters = identity.shown_to_model(request.parameters)


def start_trace(tracing: Tracing, request: InferRequest, origin: Origin) -> TraceGroup | None:
    """None when the request is not sampled."""
    now_ns = monotonic_ns()
    group = None
    if tracing.recent.is_on:
        group = tracing.sample_recent(origin.header(TRACE_HEADER))
    if group is None:
        parent = read_parent(origin.header) if tracing.is_otel else None
        group = tracing.sample(request.model_name, parent)
    if group is not None:
        name = _RECEIVE[origin.trace_name]
        group.stamp(f"{name}_START", origin.receive_start_ns or now_ns)
        group.stamp(f"{name}_END", now_ns)
    return group


def traced(group: TraceGroup, consumer: Consumer, trace_name: str) -> Consumer:
    """Encoding counts as sending, because it happens while the response is written."""

    def consume(response: InferResponse | None, is_final: bool) -> None:
        group.stamp(f"{trace_name}_SEND_START")
        consumer(response, is_final)
        group.stamp(f"{trace_name}_SEND_END")
        if is_final:
            group.close()

    return consume
