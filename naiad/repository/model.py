"""One loaded version of a model: its config, its instances, its scheduler, its counters.

In:  built by loader.py when every instance is ready. Out: InferenceCore hands it requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from naiad import log
from naiad.core.ask_all import ask_all
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.health import ModelHealth
from naiad.core.model_spec import ModelSpec, TensorSpec, shows_api_key
from naiad.core.statistics import ModelStatistics
from naiad.errors import invalid_arg
from naiad.files.safe_path import path_inside
from naiad.instances.executor import Executor
from naiad.instances.instance import Instance
from naiad.instances.template_process import Templates
from naiad.instances.worker_process import unhealthy
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.request_check import RequestCheck
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence.handover import Handover
from naiad.shm.arena import SLOT_IDLE_NS, Arena


class Model:
    def __init__(
        self,
        spec: ModelSpec,
        config: ModelConfig,
        statistics: ModelStatistics,
        instances: list[Instance],
        scheduler: Scheduler,
        arena: Arena,
    ) -> None:
        self.spec = spec
        self.config = config
        self.statistics = statistics
        self.instances = instances
        self.scheduler = scheduler
        self.arena = arena
        self.check = RequestCheck(spec).check
        self.on_stopped: list[Callable[[], None]] = []
        """Called when the copy has stopped, for example to delete the files of a load request."""
        self.on_change: Callable[[], None] | None = None
        """Called when the copy begins or ceases to serve, and when its spec changes."""
        self.namespace = ""
        """With --model-namespacing, the repository that the model is from; otherwise empty."""
        self.templates: Templates | None = None
        """The templates that its workers are forked from, if they are not the server's."""
        self.signatures: dict[str, bytes] = {}
        """The name of an instance -> its signature. Instances with equal signatures are
        interchangeable (naiad.repository.load.resize)."""
        self.is_serving = True
        """Accepts requests: at least one instance has a live worker, or will have one soon. It is
        always True for an ensemble, whose steps refuse requests themselves."""
        for instance in instances:
            instance.add_state_observer(self)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> int:
        return self.spec.version

    @property
    def facts(self) -> dict[str, str]:
        """What the model found out while it loaded."""
        return next((instance.facts for instance in self.instances if instance.facts), {})

    @property
    def shown_config(self) -> ModelConfig:
        """The config as clients see it: with what the model found out while it loaded as
        parameters. The config's own parameters win."""
        facts = self.facts
        if not facts:
            return self.config
        config = ModelConfig()
        config.CopyFrom(self.config)
        for name, value in facts.items():
            if name not in config.parameters:
                config.parameters[name].string_value = value
        return config

    def on_state_change(self, instance: Executor) -> None:
        self._update_serving()

    def _update_serving(self) -> None:
        was_serving = self.is_serving
        self.is_serving = any(instance.accepts_requests for instance in self.instances)
        if self.is_serving != was_serving and self.on_change is not None:
            self.on_change()

    @property
    def is_healthy(self) -> bool:
        """At least one instance responds to its heartbeat."""
        return any(instance.is_healthy for instance in self.instances) or not self.instances

    def health(self, now_ns: int) -> ModelHealth:
        instances = [instance.health(now_ns) for instance in self.instances]
        return ModelHealth(self.name, str(self.version), self.is_healthy, instances)

    def oldest_execution_s(self, now_ns: int) -> float:
        """How long the oldest batch of any instance has been executing; 0 if none is."""
        times = (instance.executing_s(now_ns) for instance in self.instances)
        return max((time_s for time_s in times if time_s is not None), default=0.0)

    @property
    def breakdown(self) -> str:
        """Why a loaded model cannot serve: every instance crashes in a loop, or has lost its files.
        Empty otherwise."""
        if not self.instances or not all(instance.is_broken for instance in self.instances):
            return ""
        first = self.instances[0]
        return f"Internal: worker of '{first.name}' {first.trouble}"

    @property
    def outage(self) -> str:
        """Why a loaded model does not accept requests now, as text; empty while it does."""
        if self.is_serving:
            return ""
        return next((instance.outage for instance in self.instances if instance.outage), "")

    def ask_ready(self, on_ready: Callable[[bool], None]) -> None:
        """Asks the `is_ready` method of the model in every instance that serves and has one. As in
        Triton, one that says no is enough."""
        if not self.is_healthy:
            self.log_unhealthy()
            on_ready(False)
            return
        ask_all(
            [
                instance.ask_ready
                for instance in self.instances
                if instance.has_ready_hook and instance.is_serving
            ],
            on_ready,
        )

    def log_unhealthy(self) -> None:
        """Logs, as Triton does, why somebody who asked was told that the model is not ready."""
        for instance in self.instances:
            if not instance.is_healthy:
                reason = unhealthy(instance.name)
                log.verbose(1, f"Model '{self.name}' version {self.version} is not ready: {reason}")
                return

    @property
    def parts(self) -> set[str]:
        """The names of the models that an ensemble's steps call."""
        return {step.model_name for step in self.config.ensemble_scheduling.step}

    def heartbeat(self, now_ns: int) -> None:
        dropped = self.arena.trim(SLOT_IDLE_NS)
        for instance in self.instances:
            instance.drop_slots(dropped)
            instance.heartbeat(now_ns)

    def set_versions(self, versions: list[int]) -> None:
        """Sets the versions of the model that serve now."""
        if self.spec.versions != versions:
            for instance in self.instances:
                # The latest version may now be another one. Workers that call this instance
                # directly must ask the server again, also for calls that they have begun.
                instance.loan.is_latest = self.spec.version == max(versions)
                instance.loan.recall()
            self.spec = msgspec.structs.replace(self.spec, versions=versions)
            if self.on_change is not None:
                self.on_change()

    def set_instances(self, instances: list[Instance], config: ModelConfig) -> None:
        """Applies a change of `instance_group`. The caller must retire the instances that are left
        out."""
        for instance in instances:
            if instance not in self.instances:
                instance.add_state_observer(self)
        for instance in self.instances:
            if instance not in instances:
                instance.remove_state_observer(self)
                self.signatures.pop(instance.name, None)
        self.instances = instances
        self.config = config
        self._update_serving()

    def holds_sequences(self, instance: Instance) -> bool:
        """Clients have begun sequences that the instance must see the end of."""
        resizable = self.scheduler.resizable
        return resizable is not None and resizable.holds_sequences(instance)

    async def retire(self, instance: Instance, timeout_s: float) -> None:
        """Returns when an instance that `set_instances` left out has finished its work and has
        stopped."""
        resizable = self.scheduler.resizable
        if resizable is not None:
            await resizable.remove_instance(instance)
        await instance.stop(timeout_s)

    def take_over(self, old: Model) -> None:
        """This copy serves in place of the old one. Sequences that the old copy has begun stay
        with it until they end."""
        current, replaced = self.scheduler.sequences, old.scheduler.sequences
        if current is not None and replaced is not None:
            handover = Handover(current, replaced)
            self.scheduler = handover
            old.on_stopped.append(partial(handover.forget, replaced))

    async def stop(self, timeout_s: float) -> None:
        """Finishes the requests in flight, then finalizes every instance and ends its worker."""
        await self.scheduler.stop()
        await self._stop_instances(timeout_s)

    async def kill(self) -> None:
        """Ends every worker at once. Requests in flight fail."""
        await self._stop_instances(0.0)

    async def _stop_instances(self, timeout_s: float) -> None:
        """Stops every instance and releases what they shared, even if one of them fails to stop.
        Raises the first failure afterwards."""
        try:
            results = await asyncio.gather(
                *(instance.stop(timeout_s) for instance in self.instances), return_exceptions=True
            )
        finally:
            self._close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _close(self) -> None:
        self.arena.close()
        callbacks, self.on_stopped = self.on_stopped, []
        for callback in callbacks:
            callback()


def build_spec(
    config: ModelConfig, version: int, versions: list[int], model_dir: Path
) -> ModelSpec:
    is_batched = config.max_batch_size > 0

    def tensor(io: object, labels: list[str]) -> TensorSpec:
        dims = list(io.dims)  # type: ignore[attr-defined]
        return TensorSpec(
            io.name,  # type: ignore[attr-defined]
            BY_CONFIG_NUMBER[io.data_type].name,  # type: ignore[attr-defined]
            dims,
            [-1, *dims] if is_batched else dims,
            getattr(io, "optional", False),
            getattr(io, "allow_ragged_batch", False),
            labels,
        )

    return ModelSpec(
        config.name,
        version,
        versions,
        config.platform or config.backend,
        config.max_batch_size,
        {io.name: tensor(io, []) for io in config.input},
        {io.name: tensor(io, _labels(model_dir, io.label_filename)) for io in config.output},
        config.model_transaction_policy.decoupled,
        shows_api_key(config),
    )


def _labels(model_dir: Path, file_name: str) -> list[str]:
    """The labels, one per line. As in Triton, an empty line is an empty label."""
    if not file_name:
        return []
    path = path_inside(model_dir, file_name)
    if path is None:
        raise invalid_arg(f"label_filename '{file_name}' is not inside the model's folder")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
