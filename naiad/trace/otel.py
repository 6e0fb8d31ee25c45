"""Exports finished traces as OpenTelemetry spans, with the SDK's batch processor over OTLP/HTTP.

There is one span for the request as the endpoint saw it, one below it per model, and one for the
compute phase of each model. Names, attributes and events are Triton's. Spans are built after the
last trace has ended, with the ids that models have already seen in their contexts. The module is
imported only for `mode=opentelemetry`, because the SDK is an extra.
"""

from __future__ import annotations

import threading
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from naiad import log
from naiad.core.trace import Trace, TraceGroup, new_span_id
from naiad.trace.trace_options import OtelOptions
from naiad.trace.trace_setting import ActiveSetting

CLOSE_LIMIT_S = 3.0
SERVICE_NAME = "triton-inference-server"
_SCOPE = InstrumentationScope("triton-server")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

Stamps = list[tuple[str, int]]


class OtelSink:
    def __init__(self, options: OtelOptions, processor: SpanProcessor | None = None) -> None:
        """`processor` replaces the batch processor with the OTLP exporter."""
        self._resource = Resource.create({"service.name": SERVICE_NAME, **options.resource})
        self._processor = processor or BatchSpanProcessor(
            OTLPSpanExporter(endpoint=options.url),
            max_queue_size=options.max_queue_size,
            schedule_delay_millis=options.schedule_delay_ms,
            max_export_batch_size=options.max_export_batch_size,
        )

    def put(self, setting: ActiveSetting, group: TraceGroup) -> None:
        setting.num_collected += 1
        for span in build_spans(group, self._resource):
            self._processor.on_end(span)

    def retire(self, setting: ActiveSetting) -> None:
        pass

    def close(self) -> None:
        """Sends the last spans. A collector that does not respond must not block the shutdown."""
        ending = threading.Thread(
            target=self._processor.shutdown, name="naiad-otel-end", daemon=True
        )
        ending.start()
        ending.join(CLOSE_LIMIT_S)
        if ending.is_alive():
            log.warning(f"the collector did not accept the last spans within {CLOSE_LIMIT_S:g} s")


def build_spans(group: TraceGroup, resource: Resource) -> list[ReadableSpan]:
    """Returns the spans in the order in which they end: children before their parents."""
    builder = _Builder(group, resource)
    spans: list[ReadableSpan] = []
    for trace in reversed(group.traces):
        spans += builder.model_spans(trace)
    return [*spans, builder.request_span()]


class _Builder:
    def __init__(self, group: TraceGroup, resource: Resource) -> None:
        self._group = group
        self._resource = resource
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        state = group.parent.state if group.parent is not None else ""
        self._state = TraceState.from_header([state]) if state else TraceState()

    def request_span(self) -> ReadableSpan:
        group, parent = self._group, self._group.parent
        stamps = group.endpoint_stamps
        if not stamps:
            stamps = [stamp for trace in group.traces for stamp in trace.stamps]
        above = None
        if parent is not None:
            above = SpanContext(
                parent.trace_id,
                parent.span_id,
                True,
                _SAMPLED if parent.is_sampled else TraceFlags(0),
                self._state,
            )
        return self._span("InferRequest", group.span_id, above, stamps, group.endpoint_stamps, {})

    def model_spans(self, trace: Trace) -> list[ReadableSpan]:
        above = self._context(self._group.span_id if trace.parent is None else trace.parent.span_id)
        attributes: dict[str, str | int] = {
            "triton.model_name": trace.model_name,
            "triton.model_version": int(trace.model_version),
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": 0 if trace.parent is None else trace.parent.id,
        }
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id
        compute = [stamp for stamp in trace.stamps if stamp[0].startswith("COMPUTE")]
        request = [stamp for stamp in trace.stamps if not stamp[0].startswith("COMPUTE")]
        spans = [self._span(trace.model_name, trace.span_id, above, request, request, attributes)]
        if compute:
            spans.insert(
                0,
                self._span(
                    "compute", new_span_id(), self._context(trace.span_id), compute, compute, {}
                ),
            )
        return spans

    def _context(self, span_id: int) -> SpanContext:
        return SpanContext(self._group.trace_id, span_id, False, _SAMPLED, self._state)

    def _span(
        self,
        name: str,
        span_id: int,
        above: SpanContext | None,
        extent: Stamps,
        events: Stamps,
        attributes: dict[str, str | int],
    ) -> ReadableSpan:
        """The span lasts from the first timestamp in `extent` to the last."""
        times = [ns for _, ns in extent]
        return ReadableSpan(
            name=name,
            context=self._context(span_id),
            parent=above,
            resource=self._resource,
            attributes=attributes,
            events=[
                Event(event, timestamp=ns + self._offset_ns)
                for event, ns in sorted(events, key=lambda stamp: stamp[1])
            ],
            kind=SpanKind.SERVER,
            instrumentation_scope=_SCOPE,
            start_time=min(times, default=0) + self._offset_ns,
            end_time=max(times, default=0) + self._offset_ns,
        )
