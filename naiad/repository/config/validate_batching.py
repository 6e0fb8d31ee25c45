"""Rules for dynamic batching; part of validate."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import ModelConfig, ModelQueuePolicy
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.source_map import entry_path

MAX_PRIORITY_LEVELS = 10_000


def check_dynamic_batching(config: ModelConfig, found: ProblemList) -> None:
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    path = "dynamic_batching"
    check_preferred_sizes(
        config, list(batching.preferred_batch_size), path, "dynamic batching preferred size", found
    )
    levels = batching.priority_levels
    if levels > MAX_PRIORITY_LEVELS:
        found.add(
            "priority-levels",
            f"dynamic batching has {levels} priority levels for {config.name}; the server keeps a "
            f"queue for each, and allows {MAX_PRIORITY_LEVELS}",
            f"{path}.priority_levels",
            found=str(levels),
            expected=f"at most {MAX_PRIORITY_LEVELS}",
        )
    if levels and not 1 <= batching.default_priority_level <= levels:
        message = f"default priority level must be in range [1, {levels}] for {config.name}"
        shown = str(batching.default_priority_level)
        fix = "set default_priority_level; 1 is the highest priority"
        found.add(
            "priority-default",
            message,
            f"{path}.default_priority_level",
            found=shown,
            expected=f"1 to {levels}",
            fix=fix,
        )
    for level in sorted(batching.priority_queue_policy):
        if levels and not 1 <= level <= levels:
            message = (
                f"priority queue policy must have priority level in range [1, {levels}] for "
                f"{config.name}"
            )
            where = entry_path(f"{path}.priority_queue_policy", level)
            found.add(
                "priority-policy", message, where, found=f"key {level}", expected=f"1 to {levels}"
            )
    if batching.preserve_ordering:
        _check_ordering(config, found)


def _check_ordering(config: ModelConfig, found: ProblemList) -> None:
    batching = config.dynamic_batching
    if batching.priority_levels > 1:
        message = (
            f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}"
        )
        shown = f"{batching.priority_levels} priority levels"
        fix = "remove preserve_ordering or priority_levels"
        found.add(
            "ordering-priority",
            message,
            "dynamic_batching.preserve_ordering",
            found=shown,
            expected="1",
            fix=fix,
        )
    policies = {"dynamic_batching.default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[entry_path("dynamic_batching.priority_queue_policy", level)] = policy
    for path, policy in policies.items():
        if (
            policy.timeout_action == ModelQueuePolicy.DELAY
            and policy.default_timeout_microseconds != 0
        ):
            message = (
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {config.name}"
            )
            fix = "use timeout_action: REJECT, or remove preserve_ordering"
            found.add(
                "ordering-delay",
                message,
                f"{path}.timeout_action",
                found="DELAY",
                expected="REJECT",
                fix=fix,
            )


def check_preferred_sizes(
    config: ModelConfig, sizes: list[int], path: str, subject: str, found: ProblemList
) -> None:
    for at, size in enumerate(sizes):
        where = f"{path}.preferred_batch_size[{at}]"
        if size <= 0:
            message = f"{subject} must be positive for {config.name}"
            found.add(
                "preferred-size",
                message,
                where,
                found=str(size),
                expected=f"1 to {config.max_batch_size}",
            )
        elif size > config.max_batch_size:
            message = f"{subject} must be <= max batch size for {config.name}"
            fix = f"raise max_batch_size to {size} or remove {size} here"
            if config.max_batch_size == 0:
                fix = "set max_batch_size: with 0 the model does not batch at all"
            found.add(
                "preferred-size",
                message,
                where,
                found=str(size),
                expected=f"at most {config.max_batch_size} (max_batch_size)",
                fix=fix,
            )
