"""A model's directory and config -> a copy of one version: its workers are started, the model is
initialized, and a scheduler stands in front of it.

In:  what config.py has read. Out: a Model that can serve, or NaiadError with nothing left running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from naiad import log
from naiad.backends.python.import_ahead import imports_are_costly
from naiad.backends.served_config import CPU_CORES, VARIABLE_PREFIX
from naiad.core.clock import Clock
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.statistics import ModelStatistics
from naiad.errors import invalid_arg
from naiad.instances.configuration import ConfigurationListener
from naiad.instances.instance import Instance
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.load_limit import LOAD_TIMEOUT, limit_load
from naiad.instances.model_templates import ModelTemplates
from naiad.instances.restart import RestartPolicy
from naiad.instances.services import Services
from naiad.instances.template_process import Templates
from naiad.instances.worker_process import WorkerProcess
from naiad.ipc.work import LoadArguments
from naiad.machine.cpus import choose_cores, usable_cores, usable_cpus
from naiad.metrics.summary import build_statistics
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.ensemble_fit import is_decoupled_ensemble, validate_ensemble
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.config.worker_settings import read_worker_settings
from naiad.repository.environment.python_environment import PythonEnvironments
from naiad.repository.load.before_start import (
    EXECUTION_TIMEOUT,
    check_count,
    check_stub_name,
    read_seconds,
    read_spec,
    require_no_python_version,
)
from naiad.repository.load.gpu_limit import GpuLimits
from naiad.repository.load.host_policies import HostPolicies
from naiad.repository.load.resize import plan_resize, signature
from naiad.repository.load.warmup import read_warmup
from naiad.repository.model import Model
from naiad.scheduling.build import build_ensemble, build_scheduler
from naiad.scheduling.cache.cache import ResponseCache
from naiad.scheduling.cache.caching import CachingScheduler
from naiad.scheduling.ensemble.ensemble import Infer
from naiad.scheduling.ensemble.relay import Find
from naiad.scheduling.rate_limiter import Needs, Permit, RateLimiter, read_needs
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.start_delay import NO_DELAY, StartDelay
from naiad.settings import LatencyMetrics
from naiad.shm.arena import Arena
from naiad.shm.directory import SlotDirectory
from naiad.worker.import_backend import BACKENDS, find_backend


class LoadOptions(msgspec.Struct, frozen=True):
    backend_config: dict[str, dict[str, str]] = {}
    backend_directory: Path | None = None
    execution_timeout_s: float = 0.0
    load_timeout_s: float = 0.0
    restarts: RestartPolicy = RestartPolicy()
    latency: LatencyMetrics = LatencyMetrics()
    host_policies: HostPolicies = HostPolicies()
    gpu_limits: GpuLimits = GpuLimits()
    max_queue_size: int = 0
    """The limit of queues for which the config sets none; 0 means unlimited."""
    max_queue_wait_s: float = 0.0
    """The limit of queues for which the config has no policy; 0 means unlimited."""
    environments: PythonEnvironments | None = None
    """None: every model runs on the server's own interpreter."""
    start_delay: StartDelay = NO_DELAY
    max_instances: int = 256
    """Instances of one model, on all devices together."""
    keeps_encoded: bool = False
    """There are frontend processes: tensors pass through the server encoded where they can."""


class LoaderServices(Services, Protocol):
    @property
    def find(self) -> Find | None:
        """Finds the model of an ensemble's step, so that batches can go on from step to step as
        one. None where they must not (`--ensemble-relay=false`)."""
        ...

    def break_sequence(self, request: InferRequest) -> None:
        """A step may never get this request of a sequence, so the sequence ends."""
        ...


class ConfiguredProcess(msgspec.Struct, eq=False):
    """A worker in which the model has completed its config. The same worker then loads the model,
    so that nothing is imported twice."""

    version: int
    config_json: bytes
    process: WorkerProcess
    arena: Arena
    templates: Templates
    """The server's templates, or the model's own."""


class Place(msgspec.Struct, frozen=True):
    """Where one instance of a model runs."""

    arguments: LoadArguments
    kind: bytes
    """Instances of equal kind are interchangeable."""
    needs: Needs


class Loader:
    def __init__(
        self,
        clock: Clock,
        templates: Templates,
        services: LoaderServices,
        options: LoadOptions,
        limiter: RateLimiter | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self._clock = clock
        self._limiter = limiter
        self._cache = cache
        self._templates = templates
        self._services = services
        self._options = options
        self.directory = SlotDirectory()
        """The shared memory of all models, so that a tensor can be passed from one to another
        without a copy."""

    @property
    def infer(self) -> Infer:
        """Sends the requests of an ensemble's steps."""
        return self._services.infer

    async def configure(
        self, config: ModelConfig, version: int, model_dir: Path
    ) -> ConfiguredProcess:
        """Asks the model to complete its config. Raises NaiadError. The caller must pass the
        process to `start_copy` or to `discard`."""
        backend = self._backend(config)
        group = (
            config.instance_group[0]
            if config.instance_group
            else ModelInstanceGroup(name=config.name, count=1)
        )
        arguments = self._arguments(config, group, 0, version, model_dir)
        arena = Arena(directory=self.directory)
        templates = await self._templates_for(config, backend, version, model_dir)
        process = WorkerProcess(asyncio.get_running_loop(), arguments.instance_name, arena)
        process.attach(ConfigurationListener(process, self._services))
        try:
            async with limit_load(arguments.instance_name, self._load_timeout_s(config)):
                await process.start(templates, backend)
                completed = await process.configure(arguments)
            return ConfiguredProcess(version, completed, process, arena, templates)
        except BaseException:
            await process.kill()
            self._release(templates)
            raise

    async def discard(self, configured: ConfiguredProcess) -> None:
        """Kills a process that will not load the model after all."""
        await configured.process.kill()
        self._release(configured.templates)

    async def start_copy(
        self,
        config: ModelConfig,
        version: int,
        versions: list[int],
        model_dir: Path,
        configured: ConfiguredProcess | None = None,
    ) -> Model:
        """Returns when every instance is ready. Raises NaiadError; nothing is left running then."""
        started_ns = time.monotonic_ns()
        spec = read_spec(config, version, versions, model_dir)
        statistics = build_statistics(config.name, version, self._options.latency)
        arena = configured.arena if configured is not None else Arena(directory=self.directory)
        plan = self._plan(config, spec, model_dir)
        places = self._places(config, version, model_dir)
        templates = (
            configured.templates
            if configured is not None
            else await self._templates_for(config, plan.backend, version, model_dir)
        )
        instances: list[Instance] = []
        try:
            for place in places:
                permit = self._permit(place)
                instances.append(
                    Instance(
                        self._clock,
                        templates,
                        plan,
                        place.arguments,
                        arena,
                        statistics,
                        self._services,
                        permit,
                    )
                )
            scheduler = build_scheduler(
                config,
                instances,
                self._clock,
                statistics,
                model_dir,
                self._options.start_delay,
                self._options.max_queue_size,
                self._options.max_queue_wait_s,
            )
            process = configured.process if configured is not None else None
            await _all_or_none(
                [
                    self._start_instance(instance, process if index == 0 else None)
                    for index, instance in enumerate(instances)
                ]
            )
        except BaseException:
            await asyncio.gather(*(instance.stop(0.0) for instance in instances))
            arena.close()
            self._release(templates)
            raise
        statistics.load_duration_s = (time.monotonic_ns() - started_ns) / 1e9
        model = Model(
            spec,
            config,
            statistics,
            instances,
            self._cached(scheduler, config, spec, statistics),
            arena,
        )
        model.signatures = {place.arguments.instance_name: place.kind for place in places}
        model.templates = templates
        model.on_stopped.append(lambda: self._release(templates))
        return model

    def build_ensemble(
        self,
        config: ModelConfig,
        version: int,
        versions: list[int],
        model_dir: Path,
        parts: Mapping[str, Model],
        infer: Infer | None = None,
    ) -> Model:
        """An ensemble needs no process: its steps are requests to other models. `parts` are the
        models that serve now. Raises NaiadError."""
        models = {name: part.config for name, part in parts.items()}
        fit = validate_ensemble(config, models)
        if fit.errors:
            raise InvalidConfigError(fit.errors)
        config.model_transaction_policy.decoupled = is_decoupled_ensemble(config, models)
        statistics = build_statistics(config.name, version, self._options.latency)
        spec = _with_labels_of_parts(read_spec(config, version, versions, model_dir), config, parts)
        find = self._services.find if infer is None or infer == self._services.infer else None
        scheduler = build_ensemble(
            config,
            version,
            models,
            infer or self._services.infer,
            self._clock,
            statistics,
            find,
            self._services.break_sequence,
        )
        cached = self._cached(scheduler, config, spec, statistics)
        return Model(spec, config, statistics, [], cached, Arena(directory=self.directory))

    def _cached(
        self,
        scheduler: Scheduler,
        config: ModelConfig,
        spec: ModelSpec,
        statistics: ModelStatistics,
    ) -> Scheduler:
        if self._cache is None or not config.response_cache.enable:
            return scheduler
        return CachingScheduler(scheduler, self._cache, spec, self._clock, statistics)

    async def resize(
        self, model: Model, groups: list[ModelInstanceGroup], model_dir: Path
    ) -> list[Instance] | None:
        """Gives a model that serves the instances of these groups: starts those that are missing,
        and returns those that the caller must retire.

        Returns None if the model's scheduler cannot be resized. Raises NaiadError; nothing has
        changed then.
        """
        resizable = model.scheduler.resizable
        if resizable is None:
            return None
        config = ModelConfig()
        config.CopyFrom(model.config)
        config.ClearField("instance_group")
        config.instance_group.extend(groups)
        places = self._places(config, model.version, model_dir)
        wanted = {place.arguments.instance_name: place for place in places}
        change = plan_resize(model.signatures, {name: place.kind for name, place in wanted.items()})
        plan = self._plan(config, model.spec, model_dir)
        templates = model.templates or self._templates
        new: list[Instance] = []
        try:
            for name, wanted_name in change.start.items():
                place = wanted[wanted_name]
                arguments = msgspec.structs.replace(place.arguments, instance_name=name)
                permit = self._permit(place)
                new.append(
                    Instance(
                        self._clock,
                        templates,
                        plan,
                        arguments,
                        model.arena,
                        model.statistics,
                        self._services,
                        permit,
                    )
                )
            await _all_or_none([self._start_instance(instance, None) for instance in new])
        except BaseException:
            await asyncio.gather(*(instance.stop(0.0) for instance in new))
            raise
        for name, wanted_name in change.start.items():
            model.signatures[name] = wanted[wanted_name].kind
        for instance in new:
            resizable.add_instance(instance)
        removed = [instance for instance in model.instances if instance.name in change.stop]
        model.set_instances(
            [instance for instance in model.instances if instance not in removed] + new, config
        )
        return removed

    async def _start_instance(self, instance: Instance, process: WorkerProcess | None) -> None:
        """Raises NaiadError. `process` has configured the model already, if there is one."""
        await instance.load(process)
        await self._options.gpu_limits.check(instance.arguments)

    async def _templates_for(
        self, config: ModelConfig, backend: str, version: int, model_dir: Path
    ) -> Templates:
        """The templates of the model's own interpreter, with the model's own variables, or with the
        model's own imports, if it has any. They live as long as the model does. Raises
        NaiadError."""
        settings = read_worker_settings(config)
        if settings.variables and not self._templates.may_import_ahead:
            raise invalid_arg(
                f"model '{config.name}' has parameters '{VARIABLE_PREFIX}...', which a server with "
                "--worker-user does not allow: the variables would act on a process of its own user"
            )
        environments, launch = self._options.environments, None
        if backend == "python" and environments is not None:
            launch = await environments.prepare(config, model_dir, settings.python_version)
        elif settings.python_version:
            require_no_python_version(config)
        templates = self._templates
        if settings.variables:
            templates = self._templates.with_variables(settings.variables, launch)
        elif launch is not None:
            templates = self._templates.on_interpreter(launch)
        if backend != "python" or not templates.may_import_ahead:
            return templates
        arguments = self._arguments_of_all(config, version, model_dir)
        if arguments is None or not imports_are_costly(arguments):
            return templates
        return ModelTemplates(templates, arguments, owns_plain=templates is not self._templates)

    def _arguments_of_all(
        self, config: ModelConfig, version: int, model_dir: Path
    ) -> LoadArguments | None:
        """The arguments of the first instance, if there are others and their processes may be alike
        until they load the model: no host policy, no cores of their own, and one kind of
        device."""
        groups = config.instance_group
        devices = [(group, gpu) for group in groups for gpu in (group.gpus or [0])]
        places = [self._options.host_policies.place(group, gpu) for group, gpu in devices]
        if (
            sum(max(group.count, 1) for group, _ in devices) < 2
            or len({group.kind for group in groups}) > 1
            or groups[0].kind == ModelInstanceGroup.KIND_AUTO
            or any(place.cpu_cores or place.numa_node is not None for place in places)
            or read_worker_settings(config).num_cores
        ):
            return None
        return self._arguments(config, groups[0], 0, version, model_dir)

    def _release(self, templates: Templates) -> None:
        if templates is not self._templates:
            templates.close()

    def _backend(self, config: ModelConfig) -> str:
        backend: str = config.backend
        if backend in BACKENDS:
            # The same backend, from a template that has imported more modules.
            return config.platform if config.platform in BACKENDS else backend
        if self._backend_dir(backend) is not None:
            return "python"
        if find_backend(backend) is not None:
            return backend
        raise invalid_arg(
            f"unable to find backend library for backend '{backend}', "
            "try specifying runtime on the model configuration."
        )

    def _backend_dir(self, backend: str) -> Path | None:
        """The directory of a backend that is itself a model.py, for models that have none."""
        directory = self._options.backend_directory
        if directory is None or not backend or Path(backend).name != backend:
            return None
        return directory / backend if (directory / backend / "model.py").is_file() else None

    def _execution_timeout_ns(self, config: ModelConfig) -> int:
        return int(read_seconds(config, EXECUTION_TIMEOUT, self._options.execution_timeout_s) * 1e9)

    def _load_timeout_s(self, config: ModelConfig) -> float:
        return read_seconds(config, LOAD_TIMEOUT, self._options.load_timeout_s)

    def _plan(self, config: ModelConfig, spec: ModelSpec, model_dir: Path) -> InstancePlan:
        return InstancePlan(
            self._backend(config),
            config.name,
            str(spec.version),
            config.model_transaction_policy.decoupled,
            self._execution_timeout_ns(config),
            self._options.restarts,
            read_warmup(config, spec, model_dir),
            self._load_timeout_s(config),
            self._options.keeps_encoded,
        )

    def _places(self, config: ModelConfig, version: int, model_dir: Path) -> list[Place]:
        check_count(config, self._options.max_instances)
        result: list[Place] = []
        for group in config.instance_group:
            if group.host_policy and not self._options.host_policies.knows(group.host_policy):
                log.warning(
                    f"model '{config.name}' asks for host policy '{group.host_policy}', "
                    "which no --host-policy option describes"
                )
            devices = list(group.gpus) if group.kind == ModelInstanceGroup.KIND_GPU else [0]
            places = [device for device in devices for _ in range(max(group.count, 1))]
            for index, device in enumerate(places):
                arguments = self._arguments(config, group, index, version, model_dir, device)
                result.append(Place(arguments, signature(group, device), read_needs(group, device)))
        return result

    def _permit(self, place: Place) -> Permit | None:
        """Raises NaiadError if the server does not have the resources that the instance needs."""
        return (
            self._limiter.add(place.needs)
            if self._limiter is not None and place.needs.resources
            else None
        )

    def _arguments(
        self,
        config: ModelConfig,
        group: ModelInstanceGroup,
        index: int,
        version: int,
        model_dir: Path,
        device: int = 0,
    ) -> LoadArguments:
        kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        options = self._options.backend_config
        backend_dir = self._backend_dir(config.backend)
        if config.backend == "python" or backend_dir is not None:
            check_stub_name(config.name)
            check_stub_name(group.name)
        place = self._options.host_policies.place(group, device)
        settings = read_worker_settings(config)
        return LoadArguments(
            config.name,
            version,
            str(model_dir),
            f"{group.name}_{index}",
            kind if kind in ("GPU", "MODEL") else "CPU",
            device,
            config_to_json(config),
            config.default_model_filename,
            {**options.get("", {}), **options.get(config.backend, {})},
            str(backend_dir) if backend_dir is not None else "",
            _cores(config.name, settings.num_cores, place.cpu_cores, group, index),
            place.numa_node,
            settings.max_memory_bytes,
        )


def _with_labels_of_parts(
    spec: ModelSpec, config: ModelConfig, parts: Mapping[str, Model]
) -> ModelSpec:
    """An output of an ensemble that has no labels gets those of the model output behind it."""
    outputs = dict(spec.outputs)
    for step in config.ensemble_scheduling.step:
        of_part = parts[step.model_name].spec.outputs
        for name, tensor in step.output_map.items():
            if tensor in outputs and not outputs[tensor].labels and name in of_part:
                outputs[tensor] = msgspec.structs.replace(
                    outputs[tensor], labels=of_part[name].labels
                )
    return msgspec.structs.replace(spec, outputs=outputs)


def _cores(
    model: str, count: int, allowed: list[int], group: ModelInstanceGroup, index: int
) -> list[int]:
    """The cores of one instance; empty means all. `allowed` are those of the host policy. Raises
    NaiadError if there are not as many as the model's config asks for."""
    if not count:
        return allowed
    cores = allowed or usable_cores()
    most = min(len(cores), usable_cpus())
    if count > most:
        raise invalid_arg(
            f"parameter '{CPU_CORES}' of model '{model}' is {count}, but the server may use {most} "
            f"core{'' if most == 1 else 's'} here"
        )
    return choose_cores(cores, count, group.name, index)


async def _all_or_none(starts: list[Coroutine[Any, Any, None]]) -> None:
    """Waits for all instances, so that none is still starting when the failure is reported. Raises
    the first error."""
    for result in await asyncio.gather(*starts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
