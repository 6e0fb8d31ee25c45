"""One loaded version of a model: its config, its instances, its scheduler, its counters.

In:  built by loader.py when every instance is ready. Out: what InferenceCore hands requests to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.statistics import ModelStatistics
from naiad.instances.instance import Instance
from naiad.instances.template_process import Templates
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config_json import config_to_json
from naiad.repository.request_check import RequestCheck
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence.handover import Handover
from naiad.shm.arena import Arena

SLOT_IDLE_NS = 30_000_000_000


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
        self.config_json = config_to_json(config)
        self.statistics = statistics
        self.instances = instances
        self.scheduler = scheduler
        self.arena = arena
        self.check = RequestCheck(spec).check
        self.on_stopped: list[Callable[[], None]] = []
        """What is given back when the copy is gone, such as the files that it was loaded from."""
        self.namespace = ""
        """The repository it is from, where models are told apart by it."""
        self.templates: Templates | None = None
        """What its workers are forked from, when that is not the server's."""
        self.signatures: dict[str, bytes] = {}
        """By the name of an instance: what makes it interchangeable with another
        (naiad.repository.load.resize)."""
        self.is_serving = True
        """Takes requests: at least one instance has a live worker. An ensemble's steps say so
        themselves."""
        for instance in instances:
            instance.observers.append(self._on_state)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> int:
        return self.spec.version

    def _on_state(self) -> None:
        self.is_serving = any(instance.is_serving for instance in self.instances)

    @property
    def is_healthy(self) -> bool:
        """Truthful readiness: at least one instance answers its heartbeat and says that it is
        ready."""
        return any(instance.is_healthy for instance in self.instances) or not self.instances

    @property
    def breakdown(self) -> str:
        """Why it cannot serve although it is loaded: every instance crashes in a loop. Empty
        otherwise."""
        if not self.instances or not all(
            instance.is_broken and not instance.is_serving for instance in self.instances
        ):
            return ""
        return f"Internal: worker of '{self.instances[0].name}' crashes in a loop: it {self.instances[0].last_end}"

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        """`answer` gets what the first instance says whose model has an opinion; at once where none
        has."""
        for instance in self.instances:
            if instance.has_ready_hook and instance.is_serving:
                instance.ask_ready(answer)
                return
        answer(self.is_healthy)

    @property
    def parts(self) -> set[str]:
        """Names of the models that an ensemble's steps call."""
        return {step.model_name for step in self.config.ensemble_scheduling.step}

    def heartbeat(self, now_ns: int) -> None:
        dropped = self.arena.trim(SLOT_IDLE_NS)
        for instance in self.instances:
            instance.drop_slots(dropped)
            instance.heartbeat(now_ns)

    def set_versions(self, versions: list[int]) -> None:
        """Those that serve beside this one have changed."""
        if self.spec.versions != versions:
            for instance in self.instances:
                # A call of the latest version may have to go elsewhere now, also one that has been
                # made before and is answered later.
                instance.is_latest = self.spec.version == max(versions)
                instance.recall()
            self.spec = msgspec.structs.replace(self.spec, versions=versions)

    def set_instances(self, instances: list[Instance], config: ModelConfig) -> None:
        """`instance_group` has changed, and nothing else has. Those that are left out are the
        caller's to retire."""
        for instance in instances:
            if instance not in self.instances:
                instance.observers.append(self._on_state)
        for instance in self.instances:
            if instance not in instances:
                instance.observers.remove(self._on_state)
                self.signatures.pop(instance.name, None)
        self.instances = instances
        self.config = config
        self.config_json = config_to_json(config)
        self._on_state()

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
        """Finishes what is in flight, then finalizes every instance and ends its worker."""
        await self.scheduler.stop()
        await asyncio.gather(*(instance.stop(timeout_s) for instance in self.instances))
        self._close()

    async def kill(self) -> None:
        """Without waiting for anything: requests in flight are failed."""
        await asyncio.gather(*(instance.stop(0.0) for instance in self.instances))
        self._close()

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
    )


def _labels(model_dir: Path, file_name: str) -> list[str]:
    """One label per line, as Triton reads them: an empty line is an empty label."""
    if not file_name:
        return []
    return (model_dir / file_name).read_text(encoding="utf-8", errors="replace").splitlines()
