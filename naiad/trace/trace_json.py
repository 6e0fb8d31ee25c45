"""Encodes a finished trace as entries of Triton's trace file.

In:  TraceGroup. Out: the elements of a JSON array. The entries of one model are together, in the
     order of time.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from naiad.core.byte_strings import split_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.trace import TensorRecord, Trace, TraceGroup

MAX_ELEMENTS = 1 << 20
"""Larger tensors are listed without their data, because writing them as text takes too long."""


def encode_trace(group: TraceGroup) -> bytes:
    """Returns the entries without the brackets of the array."""
    entries: list[dict[str, Any]] = []
    for trace in group.traces:
        entries += _entries(trace, group.endpoint_stamps if trace.parent is None else [])
    return msgspec.json.encode(entries)[1:-1]


def _entries(trace: Trace, endpoint_stamps: list[tuple[str, int]]) -> list[dict[str, Any]]:
    head: dict[str, Any] = {
        "id": trace.id,
        "model_name": trace.model_name,
        "model_version": int(trace.model_version),
    }
    if trace.request_id:
        head["request_id"] = trace.request_id
    if trace.parent is not None:
        head["parent_id"] = trace.parent.id
    timed = [
        (ns, {"id": trace.id, "timestamps": [{"name": name, "ns": ns}]})
        for name, ns in trace.stamps + endpoint_stamps
    ]
    timed += [(record.ns, _tensor(trace.id, record)) for record in trace.tensors]
    return [head, *(entry for _, entry in sorted(timed, key=lambda item: item[0]))]


def _tensor(trace_id: int, record: TensorRecord) -> dict[str, Any]:
    tensor = {
        "name": record.name,
        "data": _text(record),
        "shape": ",".join(map(str, record.shape)),
        "dtype": record.datatype,
    }
    return {"id": trace_id, "activity": record.activity, "tensor": tensor}


def _text(record: TensorRecord) -> str:
    """Returns the values separated by commas, formatted as C++ streams do. Strings are quoted."""
    if np.prod(record.shape, dtype=object) > MAX_ELEMENTS:
        return ""
    if record.datatype == "BYTES":
        return ",".join(_quoted(element) for element in split_byte_strings(record.data))
    if record.datatype == "BF16":
        values: Any = (np.frombuffer(record.data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(record.data, DATATYPES[record.datatype].numpy)
    if values.dtype.kind == "f":
        return ",".join(f"{value:g}" for value in values.tolist())
    return ",".join(str(int(value)) for value in values.tolist())


def _quoted(element: bytes) -> str:
    return msgspec.json.encode(element.decode("utf-8", "replace")).decode()
