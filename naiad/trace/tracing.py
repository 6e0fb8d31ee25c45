"""Which requests are traced, and where their traces go. One for the server; frontends ask it,
models' settings are kept here.

In:  TraceOptions, and what the trace extension changes. Out: TraceGroup for a sampled request;
     finished ones go to a sink: the trace file or OpenTelemetry.
Rule: with tracing off everywhere `is_on` is False, and that one attribute is all that a request
      costs.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Protocol

import msgspec

from naiad import log
from naiad.core.trace import RemoteParent, TraceGroup, new_span_id, new_trace_id
from naiad.trace.trace_file import TraceFile
from naiad.trace.trace_options import OPENTELEMETRY, TraceOptions
from naiad.trace.trace_setting import ActiveSetting, Changes, Chosen, checked_setting, from_options

ALL_MODELS = ""


class Sink(Protocol):
    def put(self, setting: ActiveSetting, group: TraceGroup) -> None: ...
    def retire(self, setting: ActiveSetting) -> None: ...
    def close(self) -> None:
        """Writes what waits; may take seconds."""
        ...


class Tracing:
    def __init__(self, options: TraceOptions | None = None, sink: Sink | None = None) -> None:
        self.options = options or TraceOptions()
        self.is_on = False
        self.is_otel = self.options.mode == OPENTELEMETRY
        self._sink: Sink = sink or TraceFile(self.options.file)
        self._ids = partial(next, itertools.count(1))
        self._start = from_options(self.options)
        self._chosen: dict[str, Chosen] = {}
        """By model; `ALL_MODELS` for the server."""
        start = ActiveSetting(self._start, self.options)
        if start.fault:  # Triton starts all the same, and says nothing
            log.warning(f"nothing will be traced: {start.fault}")
        self._active = {ALL_MODELS: start}
        self._note_level()

    # Requests.

    def sample(self, model_name: str, parent: RemoteParent | None = None) -> TraceGroup | None:
        """Only while `is_on`. None: this request is not traced."""
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

    def _finish(self, setting: ActiveSetting, group: TraceGroup) -> None:
        if not group.is_discarded:
            self._sink.put(setting, group)
            return
        setting.num_created -= 1
        if setting.is_exhausted:
            self._sink.retire(setting)

    # The extension. The caller has looked whether there is such a model.

    def shown(self, model_name: str = ALL_MODELS) -> dict[str, list[str]]:
        return (self._active.get(model_name) or self._active[ALL_MODELS]).shown()

    def update(self, model_name: str, changes: Changes) -> None:
        """Raises NaiadError; nothing has changed then."""
        chosen = self._current(model_name).changed(changes)
        if model_name == ALL_MODELS:
            self._update_server(chosen)
        else:
            self._update_model(model_name, chosen)
        self._note_level()

    def _current(self, model_name: str) -> Chosen:
        """What was chosen, with the count as it is now: a change of something else does not start
        it again."""
        chosen = self._chosen.get(model_name, Chosen())
        if chosen.count is None:
            return chosen
        return msgspec.structs.replace(chosen, count=self._active[model_name].count)

    def _update_server(self, chosen: Chosen) -> None:
        base = chosen.over(self._start)
        active = {ALL_MODELS: checked_setting(base, self.options)}
        for model_name in self._chosen:
            if model_name != ALL_MODELS:
                active[model_name] = checked_setting(
                    self._current(model_name).over(base), self.options
                )
        self._chosen[ALL_MODELS] = chosen
        replaced, self._active = self._active, active
        for setting in replaced.values():
            self._sink.retire(setting)

    def _update_model(self, model_name: str, chosen: Chosen) -> None:
        before = self._active.get(model_name)
        if chosen.is_empty:
            self._chosen.pop(model_name, None)
            self._active.pop(model_name, None)
        else:
            base = self._chosen.get(ALL_MODELS, Chosen()).over(self._start)
            self._active[model_name] = checked_setting(chosen.over(base), self.options)
            self._chosen[model_name] = chosen
        if before is not None:
            self._sink.retire(before)

    def _note_level(self) -> None:
        self.is_on = any(setting.level and not setting.fault for setting in self._active.values())

    def close(self) -> None:
        """At the end of the server, when nothing is in flight: writes what waits; may take
        seconds."""
        self.is_on = False
        self._sink.close()
