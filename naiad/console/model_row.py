"""One row of the models page: a reading, and the rates since an earlier reading. Pure.

Rule: numbers are rounded to what people read, so that the row of an idle model does not change and
      is not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.console.model_reading import ModelReading, StepReading, VersionReading
from naiad.repository.load.failure import brief_reason

_ROUND_BYTES = 1 << 18


class InstanceRow(msgspec.Struct, frozen=True):
    name: str
    state: str
    device: str
    pid: int
    inflight: int
    memory_bytes: int
    cpu: float | None
    """Cores that the process has used since the earlier reading."""


class Rates(msgspec.Struct, frozen=True):
    """None means that nothing was measured."""

    requests_per_s: float | None = None
    failures_per_s: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    batch_size: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    cpu: float | None = None


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    reason: str
    reason_line: str
    """The reason in one line, with the file and the line where it is known."""
    versions: list[VersionReading]
    platform: str
    engine: str
    max_batch_size: int
    is_language: bool
    is_embedding: bool
    is_decoupled: bool
    inputs: list[str]
    outputs: list[str]
    steps: list[StepReading]
    instances: list[InstanceRow]
    num_queued: int
    num_succeeded: int
    num_failed: int
    num_restarts: int
    load_s: float
    loaded_at_s: int
    location: str
    memory_bytes: int
    kv_cache_usage: float | None
    rates: Rates


def build_row(new: ModelReading, old: ModelReading | None, seconds: float) -> ModelRow:
    """`old` is a reading of the same model, `seconds` ago."""
    instances = _instance_rows(new, old, seconds)
    return ModelRow(
        name=new.name,
        state=new.state,
        reason=new.reason,
        reason_line=_reason_line(new),
        versions=new.versions,
        platform=new.platform,
        engine=new.engine,
        max_batch_size=new.max_batch_size,
        is_language=new.is_language,
        is_embedding=new.is_embedding,
        is_decoupled=new.is_decoupled,
        inputs=new.inputs,
        outputs=new.outputs,
        steps=new.steps,
        instances=instances,
        num_queued=new.num_queued,
        num_succeeded=new.num_succeeded,
        num_failed=new.num_failed,
        num_restarts=new.num_restarts,
        load_s=round(new.load_s, 2),
        loaded_at_s=round(new.loaded_at_s),
        location=new.location,
        memory_bytes=sum(row.memory_bytes for row in instances),
        kv_cache_usage=None if new.kv_cache_usage is None else round(new.kv_cache_usage, 3),
        rates=build_rates(new, old, seconds),
    )


def build_rates(new: ModelReading, old: ModelReading | None, seconds: float) -> Rates:
    if old is None or seconds <= 0 or not _is_same_copy(new, old):
        return Rates()
    succeeded = new.num_succeeded - old.num_succeeded
    executions = new.num_executions - old.num_executions
    inferences = new.num_inferences - old.num_inferences
    latencies = [now - then for now, then in zip(new.latencies, old.latencies, strict=True)]
    is_language = new.is_language
    return Rates(
        requests_per_s=_rounded(succeeded / seconds),
        failures_per_s=_rounded(max(new.num_failed - old.num_failed, 0) / seconds),
        p50_ms=percentile_ms(new.bounds_ns, latencies, 0.5),
        p90_ms=percentile_ms(new.bounds_ns, latencies, 0.9),
        p99_ms=percentile_ms(new.bounds_ns, latencies, 0.99),
        batch_size=_rounded(inferences / executions) if executions > 0 else None,
        prompt_tokens_per_s=_rate(new.prompt_tokens, old.prompt_tokens, seconds)
        if is_language
        else None,
        output_tokens_per_s=_rate(new.output_tokens, old.output_tokens, seconds)
        if is_language
        else None,
        cpu=_cpu(new, old, seconds),
    )


def percentile_ms(
    bounds_ns: Sequence[float], counts: Sequence[int], fraction: float
) -> float | None:
    """Estimates a percentile from a histogram, linearly within its bucket. Returns None without
    values, and the last bound for values above it."""
    total = sum(counts)
    if total <= 0:
        return None
    rank, below = fraction * total, 0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            if index >= len(bounds_ns):
                return _rounded(bounds_ns[-1] / 1e6)
            low = bounds_ns[index - 1] if index else 0.0
            share = (rank - below) / count
            return _rounded((low + (bounds_ns[index] - low) * share) / 1e6)
        below += count
    return None


def _instance_rows(
    new: ModelReading, old: ModelReading | None, seconds: float
) -> list[InstanceRow]:
    before = {} if old is None else {row.pid: row.process.cpu_s for row in old.instances}
    return [
        InstanceRow(
            row.name,
            row.state,
            row.device,
            row.pid,
            row.inflight,
            row.process.memory_bytes // _ROUND_BYTES * _ROUND_BYTES,
            round(max(row.process.cpu_s - before[row.pid], 0.0) / seconds, 2)
            if row.pid in before and seconds > 0
            else None,
        )
        for row in new.instances
    ]


def _is_same_copy(new: ModelReading, old: ModelReading) -> bool:
    """A new copy of a model counts from zero, and a model that is not loaded has no counters."""
    return (
        new.num_succeeded >= old.num_succeeded
        and len(new.latencies) == len(old.latencies)
        and all(now >= then for now, then in zip(new.latencies, old.latencies, strict=True))
    )


def _cpu(new: ModelReading, old: ModelReading, seconds: float) -> float | None:
    shares = [row.cpu for row in _instance_rows(new, old, seconds) if row.cpu is not None]
    return round(sum(shares), 2) if shares else None


def _rate(new: float, old: float, seconds: float) -> float | None:
    return _rounded((new - old) / seconds) if new >= old else None


def _rounded(value: float) -> float:
    """Three significant digits are what people read."""
    return float(f"{value:.3g}")


def _reason_line(model: ModelReading) -> str:
    line = brief_reason(model.reason) if model.reason else ""
    if not model.failed_version or model.serving_version in (0, model.failed_version):
        return line
    return f"version {model.failed_version}: {line}; version {model.serving_version} serves"
