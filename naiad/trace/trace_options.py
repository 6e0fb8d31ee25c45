"""Parses `--trace-config` into one struct. Bad values are reported when the server starts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from naiad.core.trace import TENSORS, TIMESTAMPS
from naiad.errors import NaiadError, invalid_arg
from naiad.settings.compound import TraceSetting

TRITON, OPENTELEMETRY = "triton", "opentelemetry"
LEVELS = {"OFF": 0, "TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}
UINT32_MAX = (1 << 32) - 1
INT32_MAX = (1 << 31) - 1


class OtelOptions(msgspec.Struct, frozen=True):
    url: str = "http://localhost:4318/v1/traces"
    resource: dict[str, str] = {}
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512


class TraceOptions(msgspec.Struct, frozen=True):
    mode: str = TRITON
    level: int = 0
    rate: int = 1000
    count: int = -1
    file: str = ""
    log_frequency: int = 0
    otel: OtelOptions = OtelOptions()


def read_trace_options(entries: Iterable[TraceSetting]) -> TraceOptions:
    """Raises NaiadError."""
    general: dict[str, object] = {}
    level = 0
    otel: dict[str, object] = {}
    resource: dict[str, str] = {}
    for entry in entries:
        match entry.mode, entry.setting:
            case "", "level":
                level |= LEVELS[entry.value]
            case "", "rate":
                general["rate"] = _number(entry, 0, UINT32_MAX)
            case "", "count":
                general["count"] = _number(entry, -1, INT32_MAX)
            case "", "mode":
                general["mode"] = entry.value
            case "triton", "file":
                general["file"] = entry.value
            case "triton", "log-frequency":
                general["log_frequency"] = _number(entry, 0, UINT32_MAX)
            case "opentelemetry", "url":
                otel["url"] = entry.value
            case "opentelemetry", "resource":
                key, equals, value = entry.value.partition("=")
                if not key or not equals:
                    raise invalid_arg(
                        "--trace-config opentelemetry,resource expects <key>=<value>, "
                        f"got: {entry.value}"
                    )
                resource[key] = value
            case "opentelemetry", "bsp_max_queue_size":
                otel["max_queue_size"] = _number(entry, 1, INT32_MAX)
            case "opentelemetry", "bsp_schedule_delay":
                otel["schedule_delay_ms"] = _number(entry, 1, INT32_MAX)
            case "opentelemetry", "bsp_max_export_batch_size":
                otel["max_export_batch_size"] = _number(entry, 1, INT32_MAX)
            case mode, setting:
                of_mode = f" of mode {mode!r}" if mode else ""
                raise invalid_arg(f"--trace-config: there is no setting '{setting}'{of_mode}")
    otel_options = msgspec.convert({**otel, "resource": resource}, OtelOptions)
    if otel_options.max_export_batch_size > otel_options.max_queue_size:
        raise invalid_arg(
            "--trace-config opentelemetry: bsp_max_export_batch_size must not be larger than "
            "bsp_max_queue_size"
        )
    return msgspec.convert({**general, "level": level, "otel": otel_options}, TraceOptions)


def _number(entry: TraceSetting, low: int, high: int) -> int:
    name = f"{entry.mode},{entry.setting}" if entry.mode else entry.setting
    try:
        value = int(entry.value)
    except ValueError:
        raise _out_of_range(name, entry.value, low, high) from None
    if not low <= value <= high:
        raise _out_of_range(name, entry.value, low, high)
    return value


def _out_of_range(name: str, value: str, low: int, high: int) -> NaiadError:
    return invalid_arg(f"--trace-config {name} expects a number from {low} to {high}, got: {value}")
