"""Passes on the responses of a traced request, and adds its outputs and its end to the trace.

In:  the scheduler's stream. Out: a stream with the same events.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.job import Job
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.trace import Trace
from naiad.errors import NaiadError


def enqueue_traced(
    job: Job,
    model_name: str,
    model_version: int,
    enqueue: Callable[[Job], ResponseStream],
) -> ResponseStream:
    """Raises NaiadError as `enqueue` does. The model is not part of the trace then."""
    request, trace = job.request, job.request.trace
    assert trace is not None
    trace.begin(model_name, str(model_version), request.id, job.start_ns)
    trace.queued(request.inputs)
    try:
        inner = enqueue(job)
    except NaiadError:
        trace.rejected()
        raise
    outer = ResponseStream()
    outer.on_cancel(inner.cancel)
    outer.on_flow(inner.pause)
    inner.deliver_to(_TracedResponses(trace, outer).on_response)
    return outer


class _TracedResponses:
    def __init__(self, trace: Trace, outer: ResponseStream) -> None:
        self._trace = trace
        self._outer = outer

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._trace.record("TENSOR_BACKEND_OUTPUT", response.outputs)
            self._trace.responded()
        if is_final:
            self._trace.end()
        self._outer.put(response, is_final)
