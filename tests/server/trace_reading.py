"""Reads trace files: which entries belong to which model, and how long each part took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

ORDER = (
    "HTTP_RECV_START", "HTTP_RECV_END", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END",
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
    "GRPC_SEND_START", "GRPC_SEND_END",
)  # fmt: skip
"""The order of the timestamps of a request with one response."""

SPANS = {
    "request": ("REQUEST_START", "REQUEST_END"),
    "queue": ("QUEUE_START", "COMPUTE_START"),
    "compute": ("COMPUTE_START", "COMPUTE_END"),
    "input": ("COMPUTE_START", "COMPUTE_INPUT_END"),
    "infer": ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    "output": ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
    "http": ("HTTP_RECV_START", "HTTP_SEND_END"),
    "grpc": ("GRPC_WAITREAD_START", "GRPC_SEND_END"),
}
"""The spans that trace_summary.py adds up. It fails if an end is before its start."""


class ReadTrace(msgspec.Struct):
    id: int
    model: str = ""
    version: int = 0
    request_id: str = ""
    parent_id: int = 0
    stamps: list[tuple[str, int]] = []
    tensors: list[tuple[str, dict[str, str]]] = []

    @property
    def activities(self) -> list[str]:
        return [name for name, _ in self.stamps]

    def summary(self) -> dict[str, int]:
        """Returns the duration in ns of each span that has a start and an end."""
        times = dict(self.stamps)
        parts = {
            name: times[end] - times[start]
            for name, (start, end) in SPANS.items()
            if start in times and end in times
        }
        assert all(ns >= 0 for ns in parts.values()), parts
        return parts


def read_traces(*paths: Path) -> list[ReadTrace]:
    """Returns the traces of all files, in the order of their ids."""
    traces: dict[int, ReadTrace] = {}
    for path in paths:
        for entry in json.loads(path.read_text()):
            trace = traces.setdefault(entry["id"], ReadTrace(entry["id"]))
            _add(trace, entry)
    return [traces[id] for id in sorted(traces)]


def _add(trace: ReadTrace, entry: dict[str, Any]) -> None:
    if "model_name" in entry:
        trace.model, trace.version = entry["model_name"], entry["model_version"]
        trace.request_id, trace.parent_id = entry.get("request_id", ""), entry.get("parent_id", 0)
    elif "timestamps" in entry:
        stamps = [(stamp["name"], stamp["ns"]) for stamp in entry["timestamps"]]
        trace.stamps = [*trace.stamps, *stamps]
    else:
        trace.tensors = [*trace.tensors, (entry["activity"], entry["tensor"])]
