"""Writes the file of `--profile-export-file`: every request with its times, inputs and outputs.

The format is perf_analyzer's JSON, which genai-perf also reads. Times are of the wall clock.
Rule: requests are written one by one, so that a long run does not need twice its memory.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naiad.perf.channels.http_infer import json_values
from naiad.perf.channels.infer_request import ClientRequest
from naiad.perf.data.output_check import grpc_outputs, http_outputs
from naiad.perf.load.level import Mode
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.recorder import Detail
from naiad.perf.measure.token_metrics import TokenChunk
from naiad.perf.prepare import LoadTarget

_MODES = {
    Mode.CONCURRENCY: "concurrency",
    Mode.PERIODIC: "concurrency",
    Mode.REQUEST_RATE: "request_rate",
}


def write_profile(
    path: Path,
    results: Sequence[LevelResult],
    target: LoadTarget,
    service_kind: str,
    endpoint: str,
    version: str,
) -> None:
    offset_ns = time.time_ns() - time.monotonic_ns()
    inputs: dict[int, str] = {}
    with path.open("w") as out:
        out.write('{"experiments":[')
        for number, result in enumerate(results):
            out.write("," * (number > 0))
            _write_experiment(out, result, target, inputs, offset_ns)
        ending = {
            "version": version,
            "service_kind": service_kind,
            "endpoint": endpoint if service_kind == "openai" else "",
        }
        out.write("]," + json.dumps(ending, separators=(",", ":"))[1:])


def _write_experiment(
    out: Any, result: LevelResult, target: LoadTarget, inputs: dict[int, str], offset_ns: int
) -> None:
    mode = _MODES.get(result.level.mode, "custom")
    value: float = result.level.value
    experiment = {"mode": mode, "value": int(value) if value == int(value) else value}
    out.write(f'{{"experiment":{json.dumps(experiment)},"requests":[')
    is_first = True
    for window in result.windows:
        for detail in window.records.details:
            out.write("" if is_first else ",")
            is_first = False
            if detail.item not in inputs:
                inputs[detail.item] = json.dumps(
                    _inputs(target.inputs[detail.item]), separators=(",", ":")
                )
            entry = {
                "response_timestamps": [time_ns + offset_ns for time_ns in detail.response_ns],
                "response_outputs": [_outputs(response, target) for response in detail.responses],
            }
            text = json.dumps(entry, separators=(",", ":"))[1:]
            start = f'{{"timestamp":{detail.start_ns + offset_ns}'
            out.write(f'{start},"request_inputs":{inputs[detail.item]}{_sequence(detail)},{text}')
    boundaries = [window.start_ns + offset_ns for window in result.windows] + [
        window.end_ns + offset_ns for window in result.windows[-1:]
    ]
    if result.level.mode is Mode.PERIODIC:
        boundaries = [0, 18446744073709551615]
    out.write(f'],"window_boundaries":{json.dumps(boundaries, separators=(",", ":"))}}}')


def _sequence(detail: Detail) -> str:
    return f',"sequence_id":{detail.sequence}' if detail.sequence >= 0 else ""


def _inputs(content: Any) -> dict[str, Any]:
    if isinstance(content, ClientRequest):
        return {tensor.name: _plain(tensor.datatype, tensor.raw) for tensor in content.inputs}
    return {"payload": json.dumps(content, ensure_ascii=False)}


def _outputs(response: Any, target: LoadTarget) -> dict[str, Any]:
    if isinstance(response, TokenChunk):
        response = response.raw
    is_event = isinstance(response, bytes) and not target.facts.inputs
    if target.traffic.protocol == "sse" or (is_event and not target.traffic.is_grpc):
        response = response[1] if isinstance(response, tuple) else response
        return {"response": f"data: {response.decode('utf-8', 'replace')}\n\n"}
    if target.facts.inputs or target.traffic.is_grpc:
        outputs = grpc_outputs(response) if target.traffic.is_grpc else http_outputs(response)
        return {name: _plain(datatype, raw) for name, (datatype, _, raw) in outputs.items()}
    body = response[1] if isinstance(response, tuple) else response
    return {"response": body.decode("utf-8", "replace")}


def _plain(datatype: str, raw: bytes) -> Any:
    """Returns the values of a tensor. Like perf_analyzer, returns a single element without a
    list."""
    if datatype in ("FP16", "BF16"):
        return raw.hex()
    values = json_values(datatype, raw)
    if datatype in ("FP32", "FP64"):
        values = [value if math.isfinite(value) else str(value) for value in values]
    return values[0] if len(values) == 1 else values
