"""A traced request's answers on their way from its scheduler to whoever asked: notes the outputs,
and when the request has ended.

In:  the scheduler's stream. Out: a stream with the same events. Only traced requests pay for it.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.trace import Trace
from naiad.errors import NaiadError


def enqueue_traced(
    request: InferRequest,
    model_name: str,
    model_version: int,
    enqueue: Callable[[InferRequest], ResponseStream],
) -> ResponseStream:
    """Raises NaiadError as `enqueue` does; the trace has dropped the model then."""
    trace = request.trace
    assert trace is not None
    trace.begin(model_name, str(model_version), request.id, request.start_ns)
    trace.queued(request.inputs)
    try:
        inner = enqueue(request)
    except NaiadError:
        trace.rejected()
        raise
    outer = ResponseStream()
    outer.on_cancel(inner.cancel)
    outer.on_flow(inner.pause)
    inner.deliver_to(_TracedAnswers(trace, outer).take)
    return outer


class _TracedAnswers:
    def __init__(self, trace: Trace, outer: ResponseStream) -> None:
        self._trace = trace
        self._outer = outer

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._trace.record("TENSOR_BACKEND_OUTPUT", response.outputs)
            self._trace.responded()
        if is_final:
            self._trace.end()
        self._outer.put(response, is_final)
