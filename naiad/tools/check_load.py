"""`naiad check --load`: every model is loaded once, in a worker as the server starts it, and ended.

In:  repositories, and the models to leave out. Out: a `Trial` for each model, as soon as it is
     known.
Rule: one instance of one model at a time, so that a repository that does not fit the machine as a
      whole can still be checked. Ensembles have no worker: they come last, and are compared with
      the configs of the models that loaded.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import msgspec

from naiad import wiring
from naiad.core.clock import LoopClock
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.errors import NaiadError, not_found
from naiad.instances.template_process import Templates
from naiad.ipc.work import ControlOperation
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.operation import MetricOperation
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.ensemble_fit import is_decoupled_ensemble, validate_ensemble
from naiad.repository.load.copies import CopyStarter
from naiad.repository.load.failure import brief_reason
from naiad.repository.load.loader import Loader
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources, Override
from naiad.repository.store import LocalStore
from naiad.settings import Settings

FINALIZE_LIMIT_S = 30.0


class Trial(msgspec.Struct, frozen=True):
    repository: Path
    model: str
    seconds: float = 0.0
    error: str = ""
    """Empty if the model loaded."""
    details: str = ""
    skipped: str = ""
    """Why the model was not loaded at all."""
    fits: int = 0
    """An ensemble that fits this many models."""

    def line(self) -> str:
        if self.fits:
            models = "model" if self.fits == 1 else "models"
            return f"{self.model}: fits its {self.fits} {models}"
        if self.skipped:
            return f"{self.model}: not loaded: {self.skipped}"
        if not self.error:
            return f"{self.model}: loaded in {self.seconds:.1f} s"
        return f"{self.model}: failed after {self.seconds:.1f} s: {brief_reason(self.error)}"


class LoneServices:
    """What a model may ask of the server during a check: metrics, but no other model."""

    busy_poll = None
    lease_numbers = None
    find = None

    def __init__(self) -> None:
        self._custom = CustomMetrics()

    def infer(self, job: Job) -> ResponseStream:
        raise _alone(job.request.model_name)

    def break_sequence(self, request: InferRequest) -> None:
        pass

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        raise _alone(model_name)

    def apply_metric(self, owner: str, operation: MetricOperation) -> float:
        return self._custom.apply(owner, operation)

    def drop_metrics(self, owner: str) -> None:
        self._custom.drop_owner(owner)

    async def control(self, owner: str, operation: ControlOperation) -> bool:
        raise _alone(operation.model_name)


def try_loads(settings: Settings, failed: Collection[str], report: Callable[[Trial], None]) -> None:
    """`failed` are models that are known to have errors."""

    async def run() -> None:
        async for trial in _trials(settings, failed):
            report(trial)

    asyncio.run(run())


async def _trials(settings: Settings, failed: Collection[str]) -> AsyncIterator[Trial]:
    loop = asyncio.get_running_loop()
    templates = Templates(loop, wiring.worker_setup(settings, os.environ))
    options = wiring.config_options(settings)
    loader = Loader(LoopClock(loop), templates, LoneServices(), wiring.load_options(settings))
    loaded: dict[str, ModelConfig] = {}
    ensembles: list[tuple[Path, ModelSource]] = []
    try:
        for path in map(Path, settings.model_repository):
            store = LocalStore(path)
            sources = ModelSources([store], options)
            for name in sorted(store.names()):
                if name in failed:
                    yield Trial(path, name, skipped="it has errors")
                    continue
                started = time.monotonic()
                try:
                    source = sources.read(name, store, Override())
                    if source.is_ensemble:
                        ensembles.append((path, source))
                        continue
                    loaded[name] = await _load(source, CopyStarter(sources, loader))
                    yield Trial(path, name, time.monotonic() - started)
                except NaiadError as error:
                    seconds = time.monotonic() - started
                    _, _, rest = error.message.partition("\n")
                    details = error.details or rest
                    yield Trial(path, name, seconds, error.message, details.strip("\n"))
    finally:
        templates.close()
    for trial in _fit(ensembles, loaded):
        yield trial


def _fit(
    waiting: list[tuple[Path, ModelSource]], loaded: dict[str, ModelConfig]
) -> Iterator[Trial]:
    """Ensembles of ensembles come after their parts."""
    while waiting:
        ready = [entry for entry in waiting if loaded.keys() >= set(entry[1].parts)]
        for path, source in ready or waiting:
            missing = sorted(set(source.parts) - loaded.keys())
            if missing:
                error = (
                    f"ensemble '{source.name}' depends on '{missing[0]}' which has no loaded "
                    "version"
                )
                yield Trial(path, source.name, error=error)
                continue
            fit = validate_ensemble(source.config, loaded, lines=source.file.lines)
            if fit.errors:
                first = fit.errors[0]
                details = f"expected: {first.expected}" if first.expected else ""
                yield Trial(path, source.name, error=first.sentence(), details=details)
                continue
            decoupled = is_decoupled_ensemble(source.config, loaded)
            source.config.model_transaction_policy.decoupled = decoupled
            loaded[source.name] = source.config
            yield Trial(path, source.name, fits=len(source.parts))
        waiting = [entry for entry in waiting if entry not in ready] if ready else []


async def _load(source: ModelSource, starter: CopyStarter) -> ModelConfig:
    """Returns the config of the latest version as the model has completed it. Raises
    NaiadError."""
    config = source.config
    if config.instance_group:
        first = type(config.instance_group[0])()
        first.CopyFrom(config.instance_group[0])
        first.count = 1
        del first.gpus[1:]
        config.ClearField("instance_group")
        config.instance_group.append(first)
    for version in source.versions:
        copy = (await starter.start(source, [version]))[version]
        if not isinstance(copy, Model):
            raise copy
        config = copy.config
        await copy.stop(FINALIZE_LIMIT_S)
    return config


def _alone(name: str) -> NaiadError:
    return not_found(f"model '{name}' is not loaded: a check loads each model by itself")
