"""ORCA load reports: a header of the response tells load balancers how full the model's KV cache
is.

In:  `endpoint-load-metrics-format: text | json` of a generate request, and the gauges that models
     show on the metrics page.
Out: the line `endpoint-load-metrics: ...` as Triton writes it, or no line, with Triton's message in
     the log. Where several models show such gauges, those of the request's own model count; Triton
     uses the ones that come last on the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from naiad import log

Gauges = Callable[[str], Mapping[str, float]]
"""Reads a family of the metrics page: its values by the text of their labels."""

FORMAT_HEADER = b"endpoint-load-metrics-format"
FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_KINDS = ("tokens_per", "used", "max")


def load_report(asked: str, gauges: Gauges, model_name: str) -> bytes:
    """The line to add to the response's head; empty when there is nothing to report."""
    blocks = _blocks(gauges(FAMILY), model_name)
    value = ""
    if any(blocks.get(kind, -1.0) < 0 for kind in _KINDS):
        log.error("One or more of the kv metrics was not found or invalid.")
    else:
        value = _value(
            asked,
            blocks["used"] / blocks["max"] if blocks["max"] > 0 else 0.0,
            int(blocks["max"] * blocks["tokens_per"]),
        )
    if not value:
        log.error(
            "ENDPOINT_LOAD_METRICS_TYPE request header is set but extracted_kv_metrics is empty, "
            f"no header written. orca_type={asked}"
        )
        return b""
    return f"endpoint-load-metrics: {value}\r\n".encode()


def _blocks(values: Mapping[str, float], model_name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    own: dict[str, float] = {}
    for text, value in values.items():
        labels = dict(_LABEL.findall(text))
        kind = labels.get("kv_cache_block_type", "")
        found[kind] = value
        if labels.get("model") == model_name:
            own[kind] = value
    return own or found


def _value(asked: str, usage: float, capacity: int) -> str:
    match asked:
        case "text":
            return (
                f"TEXT named_metrics.kv_cache_utilization={usage:.6f}, "
                f"named_metrics.max_token_capacity={capacity}"
            )
        case "json":
            report = {
                "named_metrics": {"kv_cache_utilization": usage, "max_token_capacity": capacity}
            }
            return f"JSON {json.dumps(report, separators=(',', ':'))}"
    log.error(f"orca_type is set to an invalid type: {asked}")
    return ""
