"""Traces as OpenTelemetry spans, read back from the SDK's own in-memory exporter."""

from __future__ import annotations

import time

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from naiad.core.trace import RemoteParent
from naiad.trace.otel import OtelSink
from naiad.trace.trace_options import OtelOptions, TraceOptions
from naiad.trace.tracing import Tracing
from tests.unit.trace.trace_rig import begin, finish, run


class Rig:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        options = TraceOptions(
            mode="opentelemetry", level=1, rate=1, otel=OtelOptions(resource={"team": "t"})
        )
        self.tracing = Tracing(options, OtelSink(options.otel, SimpleSpanProcessor(self.exporter)))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def test_a_request_is_three_spans() -> None:
    rig = Rig()
    group = rig.tracing.sample("m")
    assert group is not None
    run(group, "add", "seven")
    request, model, compute = (rig.spans()[name] for name in ("InferRequest", "add", "compute"))
    assert request.parent is None
    assert model.parent is not None
    assert compute.parent is not None
    assert model.parent.span_id == request.context.span_id
    assert compute.parent.span_id == model.context.span_id
    assert len({span.context.trace_id for span in (request, model, compute)}) == 1
    assert dict(model.attributes or {}) == {
        "triton.model_name": "add",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "seven",
    }
    assert [event.name for event in model.events] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert [event.name for event in compute.events] == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    assert [event.name for event in request.events][:2] == ["HTTP_RECV_START", "HTTP_RECV_END"]
    assert all(span.kind is SpanKind.SERVER for span in (request, model, compute))
    assert request.resource.attributes["service.name"] == "triton-inference-server"
    assert request.resource.attributes["team"] == "t"


def test_times_are_those_of_the_wall_clock() -> None:
    rig = Rig()
    group = rig.tracing.sample("m")
    assert group is not None
    before = time.time_ns()
    group.stamp("HTTP_RECV_START")
    finish(begin(group))
    group.stamp("HTTP_SEND_END")
    group.close()
    span = rig.spans()["InferRequest"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert before - 1_000_000 <= span.start_time <= span.end_time <= time.time_ns() + 1_000_000


def test_the_span_of_the_client_is_the_parent() -> None:
    rig = Rig()
    group = rig.tracing.sample("m", RemoteParent(0xABC, 0xDEF, True, "vendor=1"))
    assert group is not None
    context = group.new_trace().context
    run(group, "add")
    request = rig.spans()["InferRequest"]
    assert request.context.trace_id == 0xABC
    assert request.parent is not None
    assert (request.parent.span_id, request.parent.is_remote) == (0xDEF, True)
    assert request.context.trace_state.get("vendor") == "1"
    assert f"{0xABC:032x}" in context


def test_the_model_sees_the_id_of_the_exported_span() -> None:
    rig = Rig()
    group = rig.tracing.sample("m")
    assert group is not None
    trace = begin(group, "add")
    context = trace.context
    finish(trace)
    group.close()
    model = rig.spans()["add"]
    assert f"00-{model.context.trace_id:032x}-{model.context.span_id:016x}-01" in context


def test_spans_of_calls_are_children_of_the_calling_model() -> None:
    rig = Rig()
    group = rig.tracing.sample("m")
    assert group is not None
    outer = begin(group, "outer")
    finish(begin(group, "inner", parent=outer))
    finish(outer)
    group.close()
    spans = rig.spans()
    inner = spans["inner"]
    assert inner.parent is not None
    assert inner.parent.span_id == spans["outer"].context.span_id
    assert (inner.attributes or {})["triton.trace_parent_id"] == 1


def test_discarded_requests_export_nothing() -> None:
    rig = Rig()
    group = rig.tracing.sample("m")
    assert group is not None
    group.discard()
    assert rig.exporter.get_finished_spans() == ()
