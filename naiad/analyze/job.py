"""Several models or one: what is searched together, how it is judged, and how one trial is
measured.

In:  Trial. Out: Measurement, with an error instead of figures when the server would not load it or
     did not survive it.
Rule: nothing that a configuration does ends the search; only a server that cannot be started at all
      does.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec

from naiad.analyze.measurement import MIB, Measurement, ModelOutcome, gpu_figures, load_figures
from naiad.analyze.process_cost import cpu_seconds, memory_bytes
from naiad.analyze.server import AnalyzedServer, ServerError
from naiad.analyze.settings import ModelSpec, ProfileOptions
from naiad.analyze.space import Space, Trial
from naiad.analyze.variant import (
    Values,
    changed_config,
    dynamic_batching_words,
    override_json,
    total_instances,
)
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.perf.channels.call import ConnectError
from naiad.perf.channels.control import ControlError
from naiad.perf.command import command as perf_command
from naiad.perf.load.level import Level
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.ranges import Range
from naiad.perf.measure.stability import Point
from naiad.perf.options import PerfOptions
from naiad.perf.run import measure_all, prepare

_POLL_S = 0.02
_NO_CONTROL = "load / unload is not allowed"
"""What a server says that decides itself which models it has."""


class Workload(msgspec.Struct):
    """What is measured together."""

    specs: list[ModelSpec]
    configs: dict[str, ModelConfig]
    """Also of composing models, those first that others are made of."""
    space: Space

    @property
    def models(self) -> list[str]:
        return [spec.name for spec in self.specs]


class Silent:
    """Watcher of a measurement; the search has its own progress."""

    def begin(self, level: Level) -> None: ...

    def glance(
        self, level: Level, trial: int, max_trials: int, fraction: float, num_ended: int
    ) -> None: ...

    def window(self, level: Level, trial: int, point: Point) -> None: ...

    def end(self, result: LevelResult) -> None: ...


class Bench:
    """Measures trials of one workload on a server."""

    def __init__(self, options: ProfileOptions, workload: Workload, server: AnalyzedServer) -> None:
        self._options = options
        self._workload = workload
        self._server = server
        self._loaded: str | None = None
        """Values of what is loaded now, as JSON."""
        self._names: dict[str, dict[str, int]] = {}

    def key(self, trial: Trial) -> str:
        values = self._workload.space.values(trial.point)
        return json.dumps(
            {"values": values, "concurrency": trial.concurrency, "batch_size": trial.batch_size},
            sort_keys=True,
        )

    def name_of(self, model: str, values: Values) -> str:
        """`m_config_default`, `m_config_0` and so on, in the order in which they were first asked
        for."""
        if not values:
            return f"{model}_config_default"
        known = self._names.setdefault(model, {})
        return f"{model}_config_{known.setdefault(json.dumps(values, sort_keys=True), len(known))}"

    def describe(self, trial: Trial) -> str:
        values = self._workload.space.values(trial.point)
        changes = [
            f"{name.removeprefix('parameters.')} {value}"
            for own in values.values()
            for name, value in own.items()
        ]
        return f"{', '.join(changes) or 'as it is'}, concurrency {trial.concurrency}"

    async def measure(self, trial: Trial) -> Measurement:
        """Raises ServerError only."""
        started = time.monotonic()
        if not self._server.is_alive():
            self._loaded = None
            await self._server.stop()
            await self._server.start()
        values = self._workload.space.values(trial.point)
        outcomes = self._outcomes(values)
        found = Measurement(self.key(trial), trial.concurrency, trial.batch_size, outcomes)
        try:
            await self._load(values)
            found = await self._run(trial, found)
        except (ControlError, ConnectError) as error:
            self._loaded = None
            if _NO_CONTROL in str(error):
                raise ServerError(
                    "the server must run with --model-control-mode=explicit, so that configurations can be loaded"
                ) from None
            reason = (
                f"the server ended: {error}{self._server.last_words()}"
                if await self._server.ends_soon()
                else str(error)
            )
            found = msgspec.structs.replace(found, error=reason)
        return msgspec.structs.replace(found, seconds=time.monotonic() - started)

    def recall(self, measurement: Measurement) -> None:
        """A measurement of an earlier run: names that it used stay taken."""
        values = {
            outcome.model: outcome.values
            for outcome in measurement.outcomes
            if outcome.values and not self._is_ensemble(outcome.model)
        }
        self._outcomes(values)

    def _is_ensemble(self, model: str) -> bool:
        return self._workload.configs[model].HasField("ensemble_scheduling")

    def _outcomes(self, values: dict[str, Values]) -> list[ModelOutcome]:
        leading = set(self._workload.models)
        found: list[ModelOutcome] = []
        for model in self._workload.configs:
            is_ensemble = self._is_ensemble(model)
            own = self._own_values(model, values)
            changed = self._changed(model, own)
            # An ensemble is another one when its parts are.
            name = self.name_of(model, {"parts": values} if is_ensemble and values else own)
            instances = "" if is_ensemble else total_instances(changed)
            batching = dynamic_batching_words(changed)
            found.append(
                ModelOutcome(
                    model,
                    name,
                    changed.max_batch_size,
                    batching,
                    instances,
                    own,
                    is_composing=model not in leading,
                )
            )
        return found

    def _own_values(self, model: str, values: dict[str, Values]) -> Values:
        """An ensemble cannot take larger batches than its parts: it follows the smallest of
        them."""
        if not self._is_ensemble(model) or not values:
            return values.get(model, {})
        config = self._workload.configs[model]
        sizes = [
            self._changed(part, values.get(part, {})).max_batch_size for part in self._parts(model)
        ]
        return (
            {"max_batch_size": min(sizes)}
            if config.max_batch_size > 0 and sizes and min(sizes) > 0
            else {}
        )

    def _parts(self, model: str) -> list[str]:
        """Of an ensemble at all levels, without the ensembles among them."""
        found: list[str] = []
        for step in self._workload.configs[model].ensemble_scheduling.step:
            found += (
                self._parts(step.model_name)
                if self._is_ensemble(step.model_name)
                else [step.model_name]
            )
        return found

    def _changed(self, model: str, values: Values) -> ModelConfig:
        spec = next((spec for spec in self._workload.specs if spec.name == model), None)
        is_cpu_only = (
            spec is not None and spec.is_cpu_only
        ) or model in self._options.cpu_only_composing_models
        return changed_config(self._workload.configs[model], values, is_cpu_only=is_cpu_only)

    async def _load(self, values: dict[str, Values]) -> None:
        wanted = json.dumps(values, sort_keys=True)
        if wanted == self._loaded:
            return
        self._loaded = None
        # Unloaded first: a change of instances alone would be made in place, with the old instances
        # as they were.
        await self.unload()
        control = self._server.control()
        try:
            for model in reversed(self._workload.configs):
                own = self._own_values(model, values)
                await control.load_model(
                    model, override_json(self._changed(model, own)) if own else ""
                )
        finally:
            await control.close()
        self._loaded = wanted

    async def unload(self) -> None:
        control = self._server.control()
        try:
            for model in self._workload.configs:
                await control.unload_model(model)
                while await control.is_model_ready(model):
                    await asyncio.sleep(_POLL_S)
        except ControlError:
            pass
        finally:
            await control.close()
        self._loaded = None

    async def _run(self, trial: Trial, found: Measurement) -> Measurement:
        pid = self._server.pid
        cpu_before, wall_before = (cpu_seconds(pid) if pid is not None else 0.0), time.monotonic()
        results = await asyncio.gather(
            *(self._measure_model(spec, trial) for spec in self._workload.specs)
        )
        wall_s = time.monotonic() - wall_before
        figures: dict[str, float] = {}
        for result in results:
            figures |= gpu_figures(result.summary)
        if pid is not None:
            figures["cpu_used_ram"] = memory_bytes(pid) / MIB
            figures["cpu_utilization"] = 100 * (cpu_seconds(pid) - cpu_before) / wall_s
        by_model = {
            spec.name: load_figures(result)
            for spec, result in zip(self._workload.specs, results, strict=True)
        }
        outcomes = [
            msgspec.structs.replace(outcome, figures=by_model.get(outcome.model, {}))
            for outcome in found.outcomes
        ]
        error = next((_complaint(result) for result in results if _complaint(result)), "")
        return msgspec.structs.replace(
            found,
            outcomes=outcomes,
            figures=figures,
            is_stable=all(result.verdict.is_stable for result in results),
            error=error,
        )

    async def _measure_model(self, spec: ModelSpec, trial: Trial) -> LevelResult:
        options = self._perf_options(spec, trial)
        target = await prepare(options)
        try:
            run = await measure_all(options, target, Silent())
        finally:
            await target.close()
        return run.levels[0]

    def _perf_options(self, spec: ModelSpec, trial: Trial) -> PerfOptions:
        options, endpoints = self._options, self._server.endpoints
        config = self._workload.configs[spec.name]
        is_streaming = config.model_transaction_policy.decoupled
        is_grpc = is_streaming or options.client_protocol == "grpc"
        flags = {**options.perf_analyzer_flags, **spec.perf_analyzer_flags}
        given: dict[str, Any] = {
            "model": spec.name,
            "protocol": "grpc" if is_grpc else "http",
            "url": endpoints.grpc if is_grpc else endpoints.http,
            "streaming": is_streaming,
            "batch_size": trial.batch_size,
            "concurrency_range": Range(trial.concurrency, trial.concurrency, 1),
            "measurement_interval": options.measurement_interval,
            "stability_percentage": options.stability_percentage,
            "max_trials": options.max_trials,
            "collect_metrics": True,
            "metrics_url": endpoints.metrics,
            "llm": options.model_type == "llm",
            "progress": "off",
        }
        if spec.request_rate:
            rate = spec.request_rate[0]
            given |= {"concurrency_range": None, "request_rate_range": Range(rate, rate, 1)}
        return PerfOptions(**(given | perf_command.parse(flag_arguments(flags))))


def _complaint(result: LevelResult) -> str:
    if result.error:
        return result.error
    if result.summary is None or not result.summary.num_requests:
        return "no request was answered"
    return ""


def flag_arguments(flags: dict[str, Any]) -> list[str]:
    """{percentile: 95, shape: [a:1, b:2], streaming: true} -> arguments of `naiad perf`."""
    found: list[str] = []
    for name, value in flags.items():
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not False and value is not None:
            for one in value if isinstance(value, list) else [value]:
                found += [flag, str(one)]
    return found
