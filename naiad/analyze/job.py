"""Measures one trial: loads the configurations on the server and runs the load.

In:  a SpaceTrial.
Out: a Measurement. It has an error instead of figures if the server rejected the configuration or
     crashed.
Rule: a bad configuration never ends the search. Only a server that cannot be started does.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec

from naiad.analyze.measurement import MIB, Measurement, ModelOutcome, gpu_figures, load_figures
from naiad.analyze.precision import Precision, PrecisionOutcome, read_precision
from naiad.analyze.process_cost import cpu_seconds, memory_bytes
from naiad.analyze.server import AnalyzedServer, ServerError
from naiad.analyze.settings import AnalyzedModel, ProfileOptions
from naiad.analyze.space import Space, SpaceTrial
from naiad.analyze.variant import (
    Values,
    changed_config,
    dynamic_batching_text,
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
from naiad.settings.option import OptionError

_POLL_S = 0.02
_NO_CONTROL = "load / unload is not allowed"
"""Part of the error of a server whose model control mode is not explicit."""


class Workload(msgspec.Struct):
    """Models that are searched and measured together."""

    specs: list[AnalyzedModel]
    configs: dict[str, ModelConfig]
    """Configurations of the models and of their composing models; a model precedes the models that
    it is composed of."""
    space: Space
    precisions: list[PrecisionOutcome] = []

    @property
    def models(self) -> list[str]:
        return [spec.name for spec in self.specs]


class Silent:
    """A watcher that shows nothing; the search shows its own progress."""

    def begin(self, level: Level) -> None: ...

    def progress(
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
        """The loaded values, as JSON; None if unknown."""
        self._names: dict[str, dict[str, int]] = {}

    def key(self, trial: SpaceTrial) -> str:
        parts: dict[str, Any] = {
            "values": self._workload.space.values(trial.point),
            "concurrency": trial.concurrency,
            "batch_size": trial.batch_size,
        }
        # A sweep reuses the measurements of the search; each round of the comparison is measured.
        if trial.round:
            parts["round"] = trial.round
        return json.dumps(parts, sort_keys=True)

    def name_of(self, model: str, values: Values) -> str:
        """Returns `m_config_default`, or `m_config_0`, `m_config_1`, ... in the order of the first
        call."""
        if not values:
            return f"{model}_config_default"
        known = self._names.setdefault(model, {})
        return f"{model}_config_{known.setdefault(json.dumps(values, sort_keys=True), len(known))}"

    def describe(self, trial: SpaceTrial) -> str:
        values = self._workload.space.values(trial.point)
        changes = [
            f"{name.removeprefix('parameters.')} {value}"
            for own in values.values()
            for name, value in own.items()
        ]
        return f"{', '.join(changes) or 'default'}, concurrency {trial.concurrency}"

    async def measure(self, trial: SpaceTrial) -> Measurement:
        """Loads and measures a trial. Raises ServerError if the server cannot be used at all."""
        started = time.monotonic()
        if not self._server.is_alive():
            self._loaded = None
            await self._server.stop()
            await self._server.start()
        values = self._workload.space.values(trial.point)
        outcomes = self._outcomes(values)
        measurement = Measurement(
            self.key(trial),
            trial.concurrency,
            trial.batch_size,
            outcomes,
            stage=trial.stage,
            round=trial.round,
        )
        try:
            await self._load(values)
            measurement = await self._run(trial, measurement)
        except OptionError as error:
            # The requests do not fit the configuration, e.g. the batch size or missing shapes.
            measurement = msgspec.structs.replace(measurement, error=str(error))
        except (ControlError, ConnectError) as error:
            self._loaded = None
            if _NO_CONTROL in str(error):
                raise ServerError(
                    "the server must run with --model-control-mode=explicit, so that"
                    " configurations can be loaded"
                ) from None
            reason = str(error)
            if await self._server.has_died():
                reason = f"the server died: {error}{self._server.last_log_lines()}"
            measurement = msgspec.structs.replace(measurement, error=reason)
        return msgspec.structs.replace(measurement, seconds=time.monotonic() - started)

    def recall(self, measurement: Measurement) -> None:
        """Reserves the configuration names that a measurement of an earlier run used."""
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
        outcomes: list[ModelOutcome] = []
        for model in self._workload.configs:
            is_ensemble = self._is_ensemble(model)
            own = self._own_values(model, values)
            changed = self._changed(model, own)
            # Other values of its parts make another configuration of an ensemble.
            name = self.name_of(model, {"parts": values} if is_ensemble and values else own)
            instances = "" if is_ensemble else total_instances(changed)
            batching = dynamic_batching_text(changed)
            outcomes.append(
                ModelOutcome(
                    model,
                    name,
                    changed.max_batch_size,
                    batching,
                    instances,
                    own,
                    precision=self._precision(model, changed),
                    is_composing=model not in leading,
                )
            )
        return outcomes

    def _own_values(self, model: str, values: dict[str, Values]) -> Values:
        """Returns the values of one model.

        An ensemble gets the smallest max_batch_size of its parts, because it cannot accept larger
        batches than they do.
        """
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
        """Returns the models of an ensemble and of its nested ensembles, without the ensembles."""
        parts: list[str] = []
        for step in self._workload.configs[model].ensemble_scheduling.step:
            if self._is_ensemble(step.model_name):
                parts += self._parts(step.model_name)
            else:
                parts.append(step.model_name)
        return parts

    def _changed(self, model: str, values: Values) -> ModelConfig:
        spec = next((spec for spec in self._workload.specs if spec.name == model), None)
        is_cpu_only = (
            spec is not None and spec.is_cpu_only
        ) or model in self._options.cpu_only_composing_models
        return changed_config(self._workload.configs[model], values, is_cpu_only=is_cpu_only)

    async def _load(self, values: dict[str, Values]) -> None:
        requested = json.dumps(values, sort_keys=True)
        if requested == self._loaded:
            return
        self._loaded = None
        # The server would apply a change of the instance count in place and keep the old
        # instances, so everything is unloaded first.
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
        self._loaded = requested

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

    async def _run(self, trial: SpaceTrial, measurement: Measurement) -> Measurement:
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
            msgspec.structs.replace(
                outcome,
                figures=by_model.get(outcome.model, {}) | self._precision_figures(outcome),
            )
            for outcome in measurement.outcomes
        ]
        error = next((_failure(result) for result in results if _failure(result)), "")
        return msgspec.structs.replace(
            measurement,
            outcomes=outcomes,
            figures=figures,
            is_stable=all(result.verdict.is_stable for result in results),
            error=error,
        )

    def _precision_figures(self, outcome: ModelOutcome) -> dict[str, float]:
        found = [
            one.figures
            for one in self._workload.precisions
            if (one.model, one.precision) == (outcome.model, outcome.precision)
        ]
        return found[0] if found else {}

    def _precision(self, model: str, config: ModelConfig) -> Precision | None:
        if all(one.model != model for one in self._workload.precisions):
            return None
        return read_precision(
            {name: parameter.string_value for name, parameter in config.parameters.items()}
        )

    async def _measure_model(self, spec: AnalyzedModel, trial: SpaceTrial) -> LevelResult:
        options = self._perf_options(spec, trial)
        target = await prepare(options)
        try:
            run = await measure_all(options, target, Silent())
        finally:
            await target.close()
        return run.levels[0]

    def _perf_options(self, spec: AnalyzedModel, trial: SpaceTrial) -> PerfOptions:
        options, endpoints = self._options, self._server.endpoints
        config = self._workload.configs[spec.name]
        is_streaming = config.model_transaction_policy.decoupled
        is_grpc = is_streaming or options.client_protocol == "grpc"
        flags = {**options.perf_analyzer_flags, **spec.perf_analyzer_flags}
        values: dict[str, Any] = {
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
            values |= {"concurrency_range": None, "request_rate_range": Range(rate, rate, 1)}
        return PerfOptions(**(values | perf_command.parse(flag_arguments(flags))))


def _failure(result: LevelResult) -> str:
    if result.error:
        return result.error
    if result.summary is None or not result.summary.num_requests:
        return "no request got a response"
    return ""


def flag_arguments(flags: dict[str, Any]) -> list[str]:
    """Converts {percentile: 95, shape: [a:1, b:2], streaming: true} to flags of `naiad perf`."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not False and value is not None:
            for one in value if isinstance(value, list) else [value]:
                arguments += [flag, str(one)]
    return arguments
