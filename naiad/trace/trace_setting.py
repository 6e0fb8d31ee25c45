"""The trace settings of the server and of single models, which the trace extension changes.

A setting that a model does not have falls back to the server's, and one that the server does not
have to the command line's. Clearing a setting restores the fallback.
Rule: names, values and messages are Triton's. A change makes a new `ActiveSetting`, so a trace ends
      under the settings it began with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from naiad.core.trace import TENSORS, TIMESTAMPS
from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.trace.trace_options import INT32_MAX, LEVELS, TRITON, UINT32_MAX, TraceOptions

Changes = Mapping[str, list[str] | None]
"""Setting -> its new values as text. None or an empty list clears it."""

_INTEGER = re.compile(r"\s*([+-]?[0-9]+)\s*")
_LEGACY_LEVELS = {"MIN": TIMESTAMPS, "MAX": TIMESTAMPS}


class TraceValues(msgspec.Struct, frozen=True):
    """The values set for the server or for one model. None means not set there."""

    level: int | None = None
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == TraceValues()

    def changed(self, changes: Changes) -> TraceValues:
        """Raises NaiadError."""
        if "trace_file" in changes:
            raise unsupported("trace file location can not be updated through network protocol")
        fields: dict[str, int | None] = {}
        for name, values in changes.items():
            match name:
                case "trace_level":
                    if values is None or values:
                        fields["level"] = None if values is None else _level(values)
                case "trace_rate":
                    fields["rate"] = _number(name, values, 0, UINT32_MAX)
                case "trace_count":
                    fields["count"] = _number(name, values, -1, INT32_MAX)
                case "log_frequency":
                    fields["log_frequency"] = _number(name, values, 0, UINT32_MAX)
        return msgspec.structs.replace(self, **fields)

    def with_fallback(self, fallback: TraceValues) -> TraceValues:
        return TraceValues(
            fallback.level if self.level is None else self.level,
            fallback.rate if self.rate is None else self.rate,
            fallback.count if self.count is None else self.count,
            fallback.log_frequency if self.log_frequency is None else self.log_frequency,
        )


def from_options(options: TraceOptions) -> TraceValues:
    return TraceValues(options.level, options.rate, options.count, options.log_frequency)


def checked_setting(values: TraceValues, options: TraceOptions) -> ActiveSetting:
    """Raises NaiadError if the level is not OFF but no request could ever be traced."""
    setting = ActiveSetting(values, options)
    if setting.fault:
        raise invalid_arg(f"Attempting to set invalid trace setting :{setting.fault}")
    return setting


class ActiveSetting:
    """The settings in force for the server or for one model, and the counts of its traces."""

    def __init__(self, values: TraceValues, options: TraceOptions) -> None:
        """`values` has all fallbacks applied."""
        self.level = values.level or 0
        self.rate = values.rate or 0
        self.count = -1 if values.count is None else values.count
        self.log_frequency = values.log_frequency or 0
        self._options = options
        self._num_seen = 0
        self.num_created = 0
        self.num_collected = 0

    @property
    def fault(self) -> str:
        """The reason why no request can be traced although the level is not OFF, or ""."""
        if not self.level:
            return ""
        if self._options.mode == TRITON:
            if self.rate == 0:
                return "sample rate must be non-zero"
            if not self._options.file:
                return "trace file name is not given"
        return "trace count must be non-zero" if self.count == 0 else ""

    def is_sampled(self, *, is_forced: bool) -> bool:
        """Returns True if the next request is to be traced.

        `is_forced` means that its client wants a trace, which overrides rate and count.
        """
        if not self.level or (self._options.mode == TRITON and not self._options.file):
            return False
        if is_forced:
            return True
        self._num_seen += 1
        if self.count == 0 or self.rate == 0 or self._num_seen % self.rate:
            return False
        if self.count > 0:
            self.count -= 1
        self.num_created += 1
        return True

    @property
    def is_exhausted(self) -> bool:
        """True if the number of traces is limited and all of them have been collected."""
        return self.count == 0 and self.num_collected == self.num_created

    def shown(self) -> dict[str, list[str]]:
        """Returns the settings as the extension shows them, in Triton's order."""
        options = self._options
        levels = [name for name, bit in LEVELS.items() if self.level & bit] or ["OFF"]
        values: dict[str, list[str]] = {
            "trace_level": levels,
            "trace_rate": [str(self.rate)],
            "trace_count": [str(self.count)],
        }
        if options.mode == TRITON:
            values |= {
                "log_frequency": [str(self.log_frequency)],
                "trace_file": [options.file],
                "trace_mode": [options.mode],
            }
            return values
        otel = options.otel
        values |= {"trace_mode": [options.mode], "url": [otel.url]}
        if otel.resource:
            values["resource"] = [f"{key}={value}" for key, value in otel.resource.items()]
        return values | {
            "bsp_schedule_delay": [str(otel.schedule_delay_ms)],
            "bsp_max_export_batch_size": [str(otel.max_export_batch_size)],
            "bsp_max_queue_size": [str(otel.max_queue_size)],
        }


def _level(values: list[str]) -> int:
    level = 0
    for value in values:
        if value not in LEVELS and value not in _LEGACY_LEVELS:
            raise invalid_arg(f"invalid value for trace level option: {value}")
        if value == "OFF" and len(values) > 1:
            raise invalid_arg("Expect only one trace level 'OFF' is specified")
        level |= LEVELS[value] if value in LEVELS else _LEGACY_LEVELS[value]
    return level & (TIMESTAMPS | TENSORS)


def _number(name: str, values: list[str] | None, low: int, high: int) -> int | None:
    if not values:
        return None
    if len(values) > 1:
        raise invalid_arg(f"expect only 1 value for '{name}'")
    match = _INTEGER.fullmatch(values[0])
    if match is None or len(match[1]) > 20:
        raise _unparsable(name, values[0])
    value = int(match[1])
    if name == "trace_count" and value < low:
        raise invalid_arg(f"Unable to parse '{name}'. Expecting value >= -1, got:{value}")
    if not low <= value <= high:
        raise invalid_arg(
            f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {values[0]}"
        )
    return value


def _unparsable(name: str, value: str) -> NaiadError:
    return invalid_arg(f"Unable to parse '{name}', got: {value}")
