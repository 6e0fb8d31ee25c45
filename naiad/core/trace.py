"""The trace of one request on its way through the server: what happened when, and what it caused
(ensemble steps, BLS calls).

In:  made by naiad.trace for the few requests that are sampled; everybody on the way adds what they
     know.
Out: when the last part of it has ended, the whole of it goes to a sink. Rule: a request without a
     trace costs one comparison where something could be added; nothing is formatted or written
     here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic_ns

import msgspec

from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor

TIMESTAMPS, TENSORS = 1, 2
"""Levels, as bits. Triton's OFF is neither."""


class TensorRecord(msgspec.Struct, frozen=True):
    activity: str
    name: str
    datatype: str
    shape: list[int]
    data: bytes
    """A copy: models may write to their inputs."""
    ns: int


class RemoteParent(msgspec.Struct, frozen=True):
    """The caller's span, as W3C's traceparent and tracestate headers tell it."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


class TraceGroup:
    """One sampled request and all that it caused."""

    __slots__ = (
        "_deliver",
        "_ids",
        "_num_open",
        "endpoint_stamps",
        "is_discarded",
        "level",
        "parent",
        "span_id",
        "trace_id",
        "traces",
    )

    def __init__(
        self, ids: Callable[[], int], level: int, deliver: Callable[[TraceGroup], None]
    ) -> None:
        self._ids = ids
        self._deliver = deliver
        self._num_open = 1
        """Traces that have begun and not ended, and the endpoint itself."""
        self.level = level
        self.traces: list[Trace] = []
        """The first one is the request's own; children come after their parents."""
        self.endpoint_stamps: list[tuple[str, int]] = []
        """Receiving and sending, which are no part of any model."""
        self.trace_id = 0
        """W3C's, where contexts are handed on; else 0."""
        self.span_id = 0
        self.parent: RemoteParent | None = None
        self.is_discarded = False

    def new_trace(self, parent: Trace | None = None) -> Trace:
        return Trace(self, self._ids(), parent)

    def stamp(self, name: str, ns: int = 0) -> None:
        if self.level & TIMESTAMPS:
            self.endpoint_stamps.append((name, ns or monotonic_ns()))

    def discard(self) -> None:
        """The request was refused before it reached a model: Triton tells nothing of those. In
        place of `close`."""
        self.is_discarded = True
        self.close()

    def close(self) -> None:
        """The endpoint has sent its last word, or one of the traces has ended."""
        self._num_open -= 1
        if self._num_open == 0:
            self._deliver(self)

    def opened(self, trace: Trace) -> None:
        self._num_open += 1
        self.traces.append(trace)

    def dropped(self, trace: Trace) -> None:
        """It did not come to anything."""
        self._num_open -= 1
        self.traces.remove(trace)


class Trace:
    """What one model did for the request."""

    __slots__ = (
        "_span_id",
        "group",
        "id",
        "model_name",
        "model_version",
        "parent",
        "request_id",
        "stamps",
        "tensors",
    )

    def __init__(self, group: TraceGroup, id: int, parent: Trace | None) -> None:
        self.group = group
        self.id = id
        self.parent = parent
        self.model_name = self.model_version = self.request_id = ""
        self.stamps: list[tuple[str, int]] = []
        self.tensors: list[TensorRecord] = []
        self._span_id = 0

    def child(self) -> Trace:
        return self.group.new_trace(self)

    @property
    def span_id(self) -> int:
        if not self._span_id:
            self._span_id = new_span_id()
        return self._span_id

    @property
    def context(self) -> str:
        """What the model may hand on to other services: W3C's headers as JSON; empty when no
        contexts are handed on."""
        group = self.group
        if not group.trace_id:
            return ""
        headers = {"traceparent": f"00-{group.trace_id:032x}-{self.span_id:016x}-01"}
        if group.parent is not None and group.parent.state:
            headers["tracestate"] = group.parent.state
        return msgspec.json.encode(headers).decode()

    # What happens, in this order.

    def begin(self, model_name: str, model_version: str, request_id: str, start_ns: int) -> None:
        self.model_name, self.model_version, self.request_id = model_name, model_version, request_id
        self.group.opened(self)
        self.stamp("REQUEST_START", start_ns)

    def queued(self, inputs: list[Tensor]) -> None:
        self.stamp("QUEUE_START", monotonic_ns())
        self.record("TENSOR_QUEUE_INPUT", inputs)

    def refused(self) -> None:
        """By its scheduler, at once."""
        self.group.dropped(self)

    def computed(self, times: BatchTimes) -> None:
        self.stamp("COMPUTE_START", times.compute_start_ns)
        self.stamp("COMPUTE_INPUT_END", times.compute_input_end_ns)
        self.stamp("COMPUTE_OUTPUT_START", times.compute_output_start_ns)
        self.stamp("COMPUTE_END", times.compute_end_ns)

    def responded(self) -> None:
        """Triton tells it of the request itself only, not of its parts."""
        if self.parent is None:
            self.group.stamp("INFER_RESPONSE_COMPLETE")

    def end(self) -> None:
        self.stamp("REQUEST_END", monotonic_ns())
        self.group.close()

    def stamp(self, name: str, ns: int) -> None:
        if self.group.level & TIMESTAMPS:
            self.stamps.append((name, ns))

    def record(self, activity: str, tensors: list[Tensor]) -> None:
        if self.group.level & TENSORS:
            now_ns = monotonic_ns()
            self.tensors += [
                TensorRecord(
                    activity,
                    tensor.name,
                    tensor.datatype,
                    list(tensor.shape),
                    bytes(tensor.data),
                    now_ns,
                )
                for tensor in tensors
            ]


def new_span_id() -> int:
    return random.getrandbits(64) or 1


def new_trace_id() -> int:
    return random.getrandbits(128) or 1
