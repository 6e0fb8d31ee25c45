"""The trace of one request and of the requests it causes (ensemble steps, BLS calls).

In:  naiad.trace creates a trace for each sampled request; the layers it passes add timestamps.
Out: the whole group goes to a sink when its last trace has ended.
Rule: a request without a trace costs one comparison per place that could add something. Nothing is
      formatted or written here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic_ns

import msgspec

from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor

TIMESTAMPS, TENSORS = 1, 2
"""Trace levels, as bits. Triton's OFF is 0."""


class TensorRecord(msgspec.Struct, frozen=True):
    activity: str
    name: str
    datatype: str
    shape: list[int]
    data: bytes
    """A copy: models may write to their inputs."""
    ns: int


class RemoteParent(msgspec.Struct, frozen=True):
    """The client's span, from the W3C headers traceparent and tracestate."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


class TraceGroup:
    """The traces of one sampled request and of the requests it caused."""

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
        """Number of traces that have begun and not ended, plus one for the endpoint."""
        self.level = level
        self.traces: list[Trace] = []
        """The request's own trace is the first. Children come after their parents."""
        self.endpoint_stamps: list[tuple[str, int]] = []
        """(name, time) of receiving and sending, which belong to no model."""
        self.trace_id = 0
        """The W3C trace id if contexts are propagated, otherwise 0."""
        self.span_id = 0
        self.parent: RemoteParent | None = None
        self.is_discarded = False

    def new_trace(self, parent: Trace | None = None) -> Trace:
        return Trace(self, self._ids(), parent)

    def stamp(self, name: str, ns: int = 0) -> None:
        if self.level & TIMESTAMPS:
            self.endpoint_stamps.append((name, ns or monotonic_ns()))

    def discard(self) -> None:
        """Replaces `close` for a request that was rejected before it reached a model.

        Triton does not report these.
        """
        self.is_discarded = True
        self.close()

    def close(self) -> None:
        """Is called when the endpoint has sent everything and when one of the traces has ended."""
        self._num_open -= 1
        if self._num_open == 0:
            self._deliver(self)

    def add(self, trace: Trace) -> None:
        self._num_open += 1
        self.traces.append(trace)

    def remove(self, trace: Trace) -> None:
        """Forgets a trace whose request was rejected. It does not count as ended."""
        self._num_open -= 1
        self.traces.remove(trace)


class Trace:
    """The trace of one request to one model."""

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
        """The W3C headers as JSON, for the model to pass on to other services.

        Empty if contexts are not propagated.
        """
        group = self.group
        if not group.trace_id:
            return ""
        headers = {"traceparent": f"00-{group.trace_id:032x}-{self.span_id:016x}-01"}
        if group.parent is not None and group.parent.state:
            headers["tracestate"] = group.parent.state
        return msgspec.json.encode(headers).decode()

    # The events, in the order in which they happen.

    def begin(self, model_name: str, model_version: str, request_id: str, start_ns: int) -> None:
        self.model_name, self.model_version, self.request_id = model_name, model_version, request_id
        self.group.add(self)
        self.stamp("REQUEST_START", start_ns)

    def queued(self, inputs: list[Tensor]) -> None:
        self.stamp("QUEUE_START", monotonic_ns())
        self.record("TENSOR_QUEUE_INPUT", inputs)

    def rejected(self) -> None:
        """Is called if the scheduler did not accept the request."""
        self.group.remove(self)

    def computed(self, times: BatchTimes) -> None:
        self.stamp("COMPUTE_START", times.compute_start_ns)
        self.stamp("COMPUTE_INPUT_END", times.compute_input_end_ns)
        self.stamp("COMPUTE_OUTPUT_START", times.compute_output_start_ns)
        self.stamp("COMPUTE_END", times.compute_end_ns)

    def responded(self) -> None:
        """Adds Triton's timestamp, which the request itself has but not the requests it causes."""
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
