"""A ModelConfig -> the scheduler that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from naiad import log
from naiad.core.clock import Clock
from naiad.core.model_spec import shows_api_key
from naiad.core.request import InferRequest
from naiad.core.statistics import ModelStatistics
from naiad.instances.executor import Executor
from naiad.pb.model_config_pb2 import ModelConfig, ModelQueuePolicy
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.ensemble.ensemble import DEFAULT_MAX_INFLIGHT, EnsembleScheduler, Infer
from naiad.scheduling.ensemble.plan import (
    BatchConversion,
    EnsemblePlan,
    Step,
    TensorReshape,
)
from naiad.scheduling.ensemble.relay import Find
from naiad.scheduling.queue import QueuePolicy
from naiad.scheduling.scheduler import Scheduler
from naiad.scheduling.sequence.controls import read_controls
from naiad.scheduling.sequence.implicit_state import read_state
from naiad.scheduling.sequence.lane import DirectRule
from naiad.scheduling.sequence.sequence import SequencePlan, SequenceScheduler
from naiad.scheduling.start_delay import NO_DELAY, StartDelay


def build_scheduler(
    config: ModelConfig,
    instances: Sequence[Executor],
    clock: Clock,
    statistics: ModelStatistics,
    model_dir: Path,
    start_delay: StartDelay = NO_DELAY,
    max_queue_size: int = 0,
    max_queue_wait_s: float = 0.0,
) -> Scheduler:
    """Raises NaiadError, for example when a file of initial state is missing. `max_queue_size` is
    the limit of queues for which the config sets none, and `max_queue_wait_s` that of queues
    without a policy in the config; 0 means unlimited."""
    # Every request of a model with a response cache must be looked up there first.
    # A direct call bypasses the server, which would show the API key to the model.
    may_lend = not config.response_cache.enable and not shows_api_key(config)
    match config.WhichOneof("scheduling_choice"):
        case "sequence_batching":
            return SequenceScheduler(
                instances,
                _sequence_plan(config, model_dir),
                clock,
                statistics,
                start_delay,
                max_queue_size,
            )
        case "dynamic_batching":
            batching = config.dynamic_batching
            has_policy = batching.HasField("default_queue_policy") or bool(
                batching.priority_queue_policy
            )
            return DynamicScheduler(
                instances,
                _batch_rule(config),
                clock,
                statistics,
                default_policy=_queue_policy(batching.default_queue_policy),
                priority_levels=batching.priority_levels,
                default_priority_level=batching.default_priority_level,
                priority_queue_policy={
                    level: _queue_policy(policy)
                    for level, policy in batching.priority_queue_policy.items()
                },
                max_queue_size=max_queue_size,
                max_queue_wait_s=0.0 if has_policy else max_queue_wait_s,
                preserve_ordering=batching.preserve_ordering,
                may_lend=may_lend,
                start_count=start_delay.num_queued,
            )
        case _:
            # Without a scheduler each request is executed alone, regardless of max_batch_size.
            return DynamicScheduler(
                instances,
                BatchRule(max_batch_size=1),
                clock,
                statistics,
                max_queue_size=max_queue_size,
                max_queue_wait_s=max_queue_wait_s,
                may_lend=may_lend,
            )


def build_ensemble(
    config: ModelConfig,
    version: int,
    models: Mapping[str, ModelConfig],
    infer: Infer,
    clock: Clock,
    statistics: ModelStatistics,
    find: Find | None = None,
    on_lost: Callable[[InferRequest], None] = lambda request: None,
) -> EnsembleScheduler:
    """`models` are the completed configs of the models that the steps name."""
    batched = _batched_tensors(config, models)
    steps = [
        Step(
            step.model_name,
            str(step.model_version) if step.model_version > 0 else "",
            dict(step.input_map),
            dict(step.output_map),
            models[step.model_name].model_transaction_policy.decoupled,
            _conversions(models[step.model_name], step.input_map, batched),
        )
        for step in config.ensemble_scheduling.step
    ]
    offset = int(config.max_batch_size > 0)
    if limit := config.ensemble_scheduling.max_inflight_requests:
        log.info(f"Ensemble model '{config.name}' configured with max_inflight_requests: {limit}")
    plan = EnsemblePlan(
        config.name,
        str(version),
        steps,
        [output.name for output in config.output],
        any(step.is_decoupled for step in steps),
        config.ensemble_scheduling.max_inflight_requests or DEFAULT_MAX_INFLIGHT,
        {
            io.name: TensorReshape(list(io.dims), list(io.reshape.shape), offset)
            for io in config.input
            if io.HasField("reshape")
        },
        {
            io.name: TensorReshape(list(io.reshape.shape), list(io.dims), offset)
            for io in config.output
            if io.HasField("reshape")
        },
        {
            io.name: BatchConversion(
                list(io.reshape.shape if io.HasField("reshape") else io.dims), bool(offset)
            )
            for io in config.output
            if batched.get(io.name, bool(offset)) != bool(offset)
        },
    )
    return EnsembleScheduler(plan, infer, clock, statistics, find, on_lost)


def _batched_tensors(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> dict[str, bool]:
    """Each tensor of the ensemble -> whether the client or model that makes it has a batch
    dimension."""
    batched = {io.name: ensemble.max_batch_size > 0 for io in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        has_batch = models[step.model_name].max_batch_size > 0
        batched |= dict.fromkeys(step.output_map.values(), has_batch)
    return batched


def _conversions(
    model: ModelConfig, input_map: Mapping[str, str], batched: Mapping[str, bool]
) -> dict[str, BatchConversion]:
    has_batch = model.max_batch_size > 0
    return {
        io.name: BatchConversion(list(io.dims), has_batch)
        for io in model.input
        if io.name in input_map and batched.get(input_map[io.name], has_batch) != has_batch
    }


def _sequence_plan(config: ModelConfig, model_dir: Path) -> SequencePlan:
    batching = config.sequence_batching
    is_oldest = batching.WhichOneof("strategy_choice") == "oldest"
    max_batch_size = max(config.max_batch_size, 1)
    oldest, direct = batching.oldest, batching.direct
    return SequencePlan(
        config.name,
        None
        if is_oldest
        else DirectRule(
            direct.max_queue_delay_microseconds * 1000, direct.minimum_slot_utilization
        ),
        oldest.max_candidate_sequences or max_batch_size if is_oldest else max_batch_size,
        batching.max_sequence_idle_microseconds * 1000,
        BatchRule(
            max_batch_size,
            frozenset(oldest.preferred_batch_size),
            oldest.max_queue_delay_microseconds * 1000,
            _equal_inputs(config),
            any(io.optional for io in config.input),
        ),
        read_controls(config),
        read_state(config, model_dir),
        [output.name for output in config.output],
        batching.iterative_sequence,
        is_oldest and oldest.preserve_ordering,
    )


def _batch_rule(config: ModelConfig) -> BatchRule:
    batching = config.dynamic_batching
    return BatchRule(
        max(config.max_batch_size, 1),
        frozenset(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * 1000,
        _equal_inputs(config),
        any(io.optional for io in config.input),
    )


def _equal_inputs(config: ModelConfig) -> frozenset[str]:
    return frozenset(io.name for io in config.input if -1 in io.dims and not io.allow_ragged_batch)


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        policy.timeout_action == ModelQueuePolicy.DELAY,
        policy.default_timeout_microseconds,
        policy.allow_timeout_override,
        policy.max_queue_size,
    )
