"""The beginning of a trace at the gRPC endpoint: sampling, the caller's W3C context from the
metadata, when the request came."""

from __future__ import annotations

from time import monotonic_ns

from naiad.core.request import InferRequest
from naiad.core.trace import TraceGroup
from naiad.trace.tracing import Tracing
from naiad.trace.w3c import read_parent
from naiad.transport.grpc.call import Call


def start_trace(tracing: Tracing, request: InferRequest, call: Call) -> TraceGroup | None:
    """Of a request that is to be traced, with the times of its arrival."""
    now_ns = monotonic_ns()
    metadata = call.head.metadata
    parent = read_parent(lambda name: metadata.get(name, "")) if tracing.is_otel else None
    group = tracing.sample(request.model_name, parent)
    if group is not None:
        group.stamp("GRPC_WAITREAD_START", call.receive_start_ns or now_ns)
        group.stamp("GRPC_WAITREAD_END", now_ns)
    return group
