"""Traces without a server: a sink that keeps the traces, and functions that act as requests."""

from __future__ import annotations

from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor
from naiad.core.trace import Trace, TraceGroup
from naiad.trace.trace_options import TraceOptions
from naiad.trace.trace_setting import ActiveSetting
from naiad.trace.tracing import Tracing


class KeptTraces:
    """A sink that keeps all traces."""

    def __init__(self) -> None:
        self.groups: list[TraceGroup] = []
        self.retired: list[ActiveSetting] = []
        self.is_closed = False

    def put(self, setting: ActiveSetting, group: TraceGroup) -> None:
        setting.num_collected += 1
        self.groups.append(group)

    def retire(self, setting: ActiveSetting) -> None:
        self.retired.append(setting)

    def close(self) -> None:
        self.is_closed = True


def tracing_of(**options: object) -> tuple[Tracing, KeptTraces]:
    sink = KeptTraces()
    fields = {"level": 1, "rate": 1, "file": "trace.json", **options}
    return Tracing(TraceOptions(**fields), sink), sink  # type: ignore[arg-type]


def begin(
    group: TraceGroup, model: str = "m", request_id: str = "", parent: Trace | None = None
) -> Trace:
    trace = group.new_trace(parent)
    trace.begin(model, "1", request_id, 1000)
    trace.queued([Tensor("IN", "INT32", [2], b"\1\0\0\0\2\0\0\0")])
    return trace


def finish(trace: Trace) -> None:
    trace.computed(BatchTimes(2000, 3000, 4000, 5000))
    trace.record("TENSOR_BACKEND_OUTPUT", [Tensor("OUT", "FP32", [1], b"\0\0\x80\x3f")])
    trace.responded()
    trace.end()


def run(group: TraceGroup, model: str = "m", request_id: str = "") -> None:
    """Adds all events of one request."""
    group.stamp("HTTP_RECV_START", 900)
    group.stamp("HTTP_RECV_END", 950)
    finish(begin(group, model, request_id))
    group.stamp("HTTP_SEND_START")
    group.stamp("HTTP_SEND_END")
    group.close()
