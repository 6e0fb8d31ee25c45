"""Reads what the server knows about its models: states, instances and counters.

In:  the repository, and the counters that language models export. Out: one ModelReading per model.
Rule: a reading holds counters since the load, never rates (naiad.console.model_row compares two).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from naiad.console.process_reading import ProcessReading, read_process
from naiad.frontends.openai.models import find_embedding_spec
from naiad.frontends.token_estimate import is_language
from naiad.instances.instance import Instance
from naiad.repository.entry import Entry
from naiad.repository.load.lifecycle import State
from naiad.repository.model import Model
from naiad.repository.repository import Repository

_MODEL_LABEL = re.compile(r'model="((?:[^"\\]|\\.)*)"')
PROMPT_TOKENS = "vllm:prompt_tokens_total"
OUTPUT_TOKENS = "vllm:generation_tokens_total"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
CounterValues = Callable[[str], dict[str, float]]
"""Returns label text -> value for the name of a metric that models created."""


class InstanceReading(msgspec.Struct, frozen=True):
    name: str
    state: str
    device: str
    pid: int
    inflight: int
    process: ProcessReading = ProcessReading()


class VersionReading(msgspec.Struct, frozen=True):
    version: int
    state: str
    reason: str = ""


class StepReading(msgspec.Struct, frozen=True):
    """A step of an ensemble: tensors of the step's model -> tensors of the ensemble."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


class ModelReading(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str = ""
    """Empty for a model that was never loaded."""
    reason: str = ""
    failed_version: int = 0
    """The version that `reason` is about, if that is one."""
    serving_version: int = 0
    """The latest version that serves."""
    versions: list[VersionReading] = []
    platform: str = ""
    engine: str = ""
    """What a language model's backend says about the engine that it loaded."""
    max_batch_size: int = 0
    is_language: bool = False
    is_embedding: bool = False
    """The model serves /v1/embeddings."""
    is_decoupled: bool = False
    inputs: list[str] = []
    outputs: list[str] = []
    steps: list[StepReading] = []
    instances: list[InstanceReading] = []
    num_queued: int = 0
    num_succeeded: int = 0
    num_failed: int = 0
    num_executions: int = 0
    num_inferences: int = 0
    num_restarts: int = 0
    load_s: float = 0.0
    loaded_at_s: float = 0.0
    """0 if the model is not loaded."""
    location: str = ""
    """The repository, as the operator wrote it."""
    bounds_ns: tuple[float, ...] = ()
    latencies: list[int] = []
    """Requests per bucket of latency; the bounds are `bounds_ns`."""
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    kv_cache_usage: float | None = None


def read_models(
    repository: Repository, names: Iterable[str], values: CounterValues
) -> list[ModelReading]:
    """`names` are the models of the repositories, also those that were never loaded."""
    entries = {entry.name: entry for entry in repository.entries()}
    metrics = {
        name: _by_model(values(name)) for name in (PROMPT_TOKENS, OUTPUT_TOKENS, KV_CACHE_USAGE)
    }
    return [
        _read_entry(entries[name], metrics, repository.location(name))
        if name in entries
        else ModelReading(name=name, location=repository.location(name))
        for name in sorted({*names, *entries})
    ]


def _read_entry(entry: Entry, metrics: dict[str, dict[str, float]], location: str) -> ModelReading:
    versions = [
        VersionReading(version, *entry.shown_status(version))
        for version in sorted(entry.statuses)
        if not _is_gone(entry, version)
    ]
    state, reason, failed_version = _state(entry, versions)
    model = entry.latest
    if model is None:
        return ModelReading(
            name=entry.name,
            state=state,
            reason=reason,
            failed_version=failed_version,
            versions=versions,
            location=location,
        )
    statistics, histogram = model.statistics, model.statistics.request_histogram
    return ModelReading(
        name=entry.name,
        state=state,
        reason=reason,
        failed_version=failed_version,
        serving_version=model.version,
        versions=versions,
        platform=model.spec.platform or "ensemble",
        engine=model.facts.get("loaded_engine", ""),
        max_batch_size=model.spec.max_batch_size,
        is_language=is_language(model),
        is_embedding=find_embedding_spec(model) is not None,
        is_decoupled=model.spec.is_decoupled,
        inputs=list(model.spec.inputs),
        outputs=list(model.spec.outputs),
        steps=_steps(model),
        instances=[_read_instance(instance) for instance in model.instances],
        num_queued=statistics.pending_request_count,
        num_succeeded=statistics.success.count,
        num_failed=statistics.fail.count,
        num_executions=statistics.execution_count,
        num_inferences=statistics.inference_count,
        num_restarts=statistics.worker_restarts,
        load_s=statistics.load_duration_s,
        loaded_at_s=statistics.created_at_s,
        location=location,
        bounds_ns=histogram.bounds,
        latencies=list(histogram.counts),
        prompt_tokens=metrics[PROMPT_TOKENS].get(entry.name, 0.0),
        output_tokens=metrics[OUTPUT_TOKENS].get(entry.name, 0.0),
        kv_cache_usage=metrics[KV_CACHE_USAGE].get(entry.name),
    )


def _is_gone(entry: Entry, version: int) -> bool:
    """No folder held it when the model was last read, and nothing of it runs. The index keeps it,
    with the reason why it did not load."""
    source = entry.source
    if source is None or version in entry.models or version in source.file.versions:
        return False
    return entry.statuses[version].state is State.UNAVAILABLE


def _state(entry: Entry, versions: list[VersionReading]) -> tuple[str, str, int]:
    """The state of the latest version, why a version or the whole model does not serve, and which
    version that is. A version that a request unloaded is not a failure."""
    failed = [row for row in versions if row.reason and row.reason != "unloaded"]
    reason, number = (failed[-1].reason, failed[-1].version) if failed else (entry.failure, 0)
    if not versions:
        return (State.UNAVAILABLE.value if reason else ""), reason, number
    states = [row.state for row in versions]
    if State.LOADING.value in states:
        return State.LOADING.value, reason, number
    if entry.latest is not None:
        return entry.shown_status(entry.latest.version)[0], reason, number
    return states[-1], reason, number


def _steps(model: Model) -> list[StepReading]:
    return [
        StepReading(step.model_name, dict(step.input_map), dict(step.output_map))
        for step in model.config.ensemble_scheduling.step
    ]


def _read_instance(instance: Instance) -> InstanceReading:
    arguments = instance.arguments
    device = arguments.instance_kind
    if device == "GPU":
        device = f"GPU {arguments.device_id}"
    state = instance.state.value
    if instance.is_serving and not instance.is_healthy:
        state = "not responding"
    return InstanceReading(
        instance.name,
        state,
        device,
        instance.pid,
        instance.inflight,
        read_process(instance.pid) if instance.pid else ProcessReading(),
    )


def _by_model(values: dict[str, float]) -> dict[str, float]:
    """Adds the values of all instances and versions of a model."""
    sums: dict[str, float] = {}
    for labels, value in values.items():
        match = _MODEL_LABEL.search(labels)
        if match is not None:
            sums[match[1]] = sums.get(match[1], 0.0) + value
    return sums
