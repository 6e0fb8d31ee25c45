"""Decides which requests are traced, and sends finished traces to a sink.

In:  TraceOptions, and the changes of the trace extension, for the server and for single models.
Out: a TraceGroup for each sampled request. The sink is the trace file or OpenTelemetry; traces that
     people ask for stay in memory (`recent`).
Rule: `is_on` is False if tracing is off everywhere. Reading that attribute is the only cost for a
      request then.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Protocol

import msgspec

from naiad import log
from naiad.core.trace import TIMESTAMPS, RemoteParent, TraceGroup, new_span_id, new_trace_id
from naiad.trace.recent_traces import RecentTraces
from naiad.trace.trace_file import TraceFile
from naiad.trace.trace_options import OPENTELEMETRY, TraceOptions
from naiad.trace.trace_setting import (
    ActiveSetting,
    Changes,
    TraceValues,
    checked_setting,
    from_options,
)

ALL_MODELS = ""


class Sink(Protocol):
    def put(self, setting: ActiveSetting, group: TraceGroup) -> None: ...
    def retire(self, setting: ActiveSetting) -> None: ...
    def close(self) -> None:
        """Writes all remaining traces. May take seconds."""
        ...


class Tracing:
    def __init__(self, options: TraceOptions | None = None, sink: Sink | None = None) -> None:
        self.options = options or TraceOptions()
        self.is_on = False
        self.is_otel = self.options.mode == OPENTELEMETRY
        self._sink: Sink = sink or TraceFile(self.options.file)
        self._ids = partial(next, itertools.count(1))
        self._start = from_options(self.options)
        self._values: dict[str, TraceValues] = {}
        """Model name, or `ALL_MODELS` for the server -> its own values."""
        start = ActiveSetting(self._start, self.options)
        if start.fault:  # Triton starts without a warning
            log.warning(f"no request will be traced: {start.fault}")
        self._active = {ALL_MODELS: start}
        self.recent = RecentTraces()
        self._is_closed = False
        self.update_is_on()

    # Requests.

    def sample(self, model_name: str, parent: RemoteParent | None = None) -> TraceGroup | None:
        """Returns None if this request is not traced. Call it only while `is_on`."""
        if not self._is_exporting:
            return None
        setting = self._active.get(model_name) or self._active[ALL_MODELS]
        is_forced = self.is_otel and parent is not None and parent.is_sampled
        if not setting.is_sampled(is_forced=is_forced):
            return None
        group = TraceGroup(self._ids, setting.level, partial(self._finish, setting))
        if self.is_otel:
            group.parent = parent
            group.trace_id = new_trace_id() if parent is None else parent.trace_id
            group.span_id = new_span_id()
        return group

    def sample_recent(self, ticket: str) -> TraceGroup | None:
        """Returns None unless the request's client, or a page, has asked for a trace."""
        if not self.recent.choose(ticket):
            return None
        self.update_is_on()
        return TraceGroup(self._ids, TIMESTAMPS, partial(self.recent.add, ticket))

    def _finish(self, setting: ActiveSetting, group: TraceGroup) -> None:
        if not group.is_discarded:
            self._sink.put(setting, group)
            return
        setting.num_created -= 1
        if setting.is_exhausted:
            self._sink.retire(setting)

    # The extension. Its caller has checked that the model exists.

    def shown(self, model_name: str = ALL_MODELS) -> dict[str, list[str]]:
        return (self._active.get(model_name) or self._active[ALL_MODELS]).shown()

    def update(self, model_name: str, changes: Changes) -> None:
        """Raises NaiadError without changing anything if a value is invalid."""
        values = self._current(model_name).changed(changes)
        if model_name == ALL_MODELS:
            self._update_server(values)
        else:
            self._update_model(model_name, values)
        self.update_is_on()

    def _current(self, model_name: str) -> TraceValues:
        """Returns the values with the remaining count, so that other changes do not restart it."""
        values = self._values.get(model_name, TraceValues())
        if values.count is None:
            return values
        return msgspec.structs.replace(values, count=self._active[model_name].count)

    def _update_server(self, values: TraceValues) -> None:
        server = values.with_fallback(self._start)
        active = {ALL_MODELS: checked_setting(server, self.options)}
        for model_name in self._values:
            if model_name != ALL_MODELS:
                active[model_name] = checked_setting(
                    self._current(model_name).with_fallback(server), self.options
                )
        self._values[ALL_MODELS] = values
        replaced, self._active = self._active, active
        for setting in replaced.values():
            self._sink.retire(setting)

    def _update_model(self, model_name: str, values: TraceValues) -> None:
        replaced = self._active.get(model_name)
        if values.is_empty:
            self._values.pop(model_name, None)
            self._active.pop(model_name, None)
        else:
            server = self._values.get(ALL_MODELS, TraceValues()).with_fallback(self._start)
            self._active[model_name] = checked_setting(values.with_fallback(server), self.options)
            self._values[model_name] = values
        if replaced is not None:
            self._sink.retire(replaced)

    def update_is_on(self) -> None:
        """Must be called after a change of `recent`."""
        self._is_exporting = any(
            setting.level and not setting.fault for setting in self._active.values()
        )
        self.is_on = not self._is_closed and (self._is_exporting or self.recent.is_on)

    def close(self) -> None:
        """Writes all remaining traces when the server stops. May take seconds."""
        self._is_closed, self.is_on = True, False
        self._sink.close()
