"""Turns a finished trace into bars that a page draws: who waited or computed from when until when.

In:  TraceGroup. Out: Waterfall, in microseconds since the request began to arrive. Pure.
Rule: a response that streams has one bar from its first piece to its last, not one per piece.
"""

from __future__ import annotations

import msgspec

from naiad.core.trace import Trace, TraceGroup

_STAGES = (
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("copy inputs", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("copy outputs", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
)


class Bar(msgspec.Struct, frozen=True):
    name: str
    start_us: float
    end_us: float


class ModelSpan(msgspec.Struct, frozen=True):
    """The request to one model: the whole, and the stages within it."""

    model: str
    version: str
    depth: int
    """0 for the request itself, 1 for what it caused, and so on."""
    start_us: float
    end_us: float
    stages: list[Bar]


class Waterfall(msgspec.Struct, frozen=True):
    model: str
    total_us: float
    num_responses: int
    endpoint: list[Bar]
    """Receiving the request and sending the responses."""
    spans: list[ModelSpan]


def build_waterfall(group: TraceGroup) -> Waterfall:
    stamps = [ns for _, ns in group.endpoint_stamps]
    stamps += [ns for trace in group.traces for _, ns in trace.stamps]
    start_ns, end_ns = min(stamps, default=0), max(stamps, default=0)
    return Waterfall(
        model=group.traces[0].model_name if group.traces else "",
        total_us=_us(end_ns - start_ns),
        num_responses=sum(name.endswith("_SEND_START") for name, _ in group.endpoint_stamps),
        endpoint=_endpoint_bars(group.endpoint_stamps, start_ns),
        spans=[_span(trace, start_ns) for trace in group.traces if trace.stamps],
    )


def _endpoint_bars(stamps: list[tuple[str, int]], start_ns: int) -> list[Bar]:
    bars = []
    for title, is_part in (("receive", _is_receiving), ("send", _is_sending)):
        times = [ns for name, ns in stamps if is_part(name)]
        if times:
            bars.append(Bar(title, _us(min(times) - start_ns), _us(max(times) - start_ns)))
    return bars


def _is_receiving(name: str) -> bool:
    return "_RECV_" in name or "_WAITREAD_" in name


def _is_sending(name: str) -> bool:
    return "_SEND_" in name


def _span(trace: Trace, start_ns: int) -> ModelSpan:
    times = [ns for _, ns in trace.stamps]
    first = dict(reversed(trace.stamps))
    last = dict(trace.stamps)
    stages = [
        Bar(name, _us(first[begin] - start_ns), _us(last[end] - start_ns))
        for name, begin, end in _STAGES
        if begin in first and end in last
    ]
    return ModelSpan(
        trace.model_name,
        trace.model_version,
        _depth(trace),
        _us(min(times) - start_ns),
        _us(max(times) - start_ns),
        stages,
    )


def _depth(trace: Trace) -> int:
    depth, parent = 0, trace.parent
    while parent is not None:
        depth, parent = depth + 1, parent.parent
    return depth


def _us(ns: int) -> float:
    return round(ns / 1000, 1)
