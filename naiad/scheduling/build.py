"""ModelConfig -> the scheduler that it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.core.clock import Clock
from naiad.core.statistics import ModelStatistics
from naiad.errors import unsupported
from naiad.pb.model_config_pb2 import ModelConfig, ModelQueuePolicy
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.queue import QueuePolicy
from naiad.scheduling.scheduler import Executor, Scheduler


def build_scheduler(config: ModelConfig, instances: Sequence[Executor], clock: Clock, statistics: ModelStatistics) -> Scheduler:
    match config.WhichOneof("scheduling_choice"):
        case "sequence_batching":
            raise unsupported(f"model '{config.name}' asks for sequence batching, which this version cannot do yet")
        case "dynamic_batching":
            batching = config.dynamic_batching
            return DynamicScheduler(
                instances,
                _batch_rule(config),
                clock,
                statistics,
                default_policy=_queue_policy(batching.default_queue_policy),
                priority_levels=batching.priority_levels,
                default_priority_level=batching.default_priority_level,
                priority_queue_policy={level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()},
                preserve_ordering=batching.preserve_ordering,
            )
        case _:
            # Without a scheduler a request is executed alone, whatever max_batch_size says.
            return DynamicScheduler(instances, BatchRule(max_batch_size=1), clock, statistics)


def _batch_rule(config: ModelConfig) -> BatchRule:
    batching = config.dynamic_batching
    return BatchRule(
        max(config.max_batch_size, 1),
        frozenset(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * 1000,
        frozenset(io.name for io in config.input if -1 in io.dims and not io.allow_ragged_batch),
        any(io.optional for io in config.input),
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        policy.timeout_action == ModelQueuePolicy.DELAY,
        policy.default_timeout_microseconds,
        policy.allow_timeout_override,
        policy.max_queue_size,
    )
