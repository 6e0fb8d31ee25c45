"""Rules for dynamic and sequence batching of a configuration; part of validate."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import (
    TYPE_INT32,
    TYPE_INT64,
    TYPE_STRING,
    TYPE_UINT32,
    TYPE_UINT64,
    DataType,
    ModelConfig,
    ModelQueuePolicy,
    ModelSequenceBatching,
)
from naiad.repository.config.problem_list import ProblemList
from naiad.repository.config.source_map import entry_path
from naiad.repository.config.validate_state import check_states

Control = ModelSequenceBatching.Control
_FLAGS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID_TYPES = (TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING)


def check_dynamic_batching(config: ModelConfig, found: ProblemList) -> None:
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    path = "dynamic_batching"
    _check_preferred(
        config, list(batching.preferred_batch_size), path, "dynamic batching preferred size", found
    )
    levels = batching.priority_levels
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
            message = f"priority queue policy must have priority level in range [1, {levels}] for {config.name}"
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
            message = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {config.name}"
            fix = "use timeout_action: REJECT, or remove preserve_ordering"
            found.add(
                "ordering-delay",
                message,
                f"{path}.timeout_action",
                found="DELAY",
                expected="REJECT",
                fix=fix,
            )


def _check_preferred(
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


def check_sequence_batching(config: ModelConfig, found: ProblemList) -> None:
    if not config.HasField("sequence_batching"):
        return
    if config.response_cache.enable:
        message = (
            f"Response Cache does not currently support model {config.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
        shown = "response_cache and sequence_batching"
        found.add(
            "cache-sequence",
            message,
            "response_cache",
            found=shown,
            expected="one of the two",
            fix="remove response_cache",
        )
    _check_controls(config, found)
    batching = config.sequence_batching
    path = "sequence_batching"
    if batching.HasField("oldest"):
        sizes = list(batching.oldest.preferred_batch_size)
        _check_preferred(
            config, sizes, f"{path}.oldest", "sequence batching preferred batch size", found
        )
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        message = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        shown = str(batching.direct.minimum_slot_utilization)
        found.add(
            "slot-utilization",
            message,
            f"{path}.direct.minimum_slot_utilization",
            found=shown,
            expected="a share of the slots, 0.0 to 1.0",
            fix="write 0.5 for half of them",
        )
    check_states(config, found)


def _check_controls(config: ModelConfig, found: ProblemList) -> None:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, control_input in enumerate(config.sequence_batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not control_input.name:
            message = f"sequence batching control tensor must have a name for {config.name}"
            found.add(
                "control-name",
                message,
                path,
                found="no name",
                expected="the model's input that gets the control value",
            )
        elif control_input.name in tensors:
            message = f"sequence batching control tensor '{control_input.name}' is specified for multiple control kinds for {config.name}"
            found.add(
                "control-tensor",
                message,
                f"{path}.name",
                found=f"'{control_input.name}' twice",
                expected="one entry per tensor",
            )
        tensors.add(control_input.name)
        for at, control in enumerate(control_input.control):
            where = f"{path}.control[{at}]"
            kind = (
                Control.Kind.Name(control.kind)
                if control.kind in Control.Kind.values()
                else str(control.kind)
            )
            if control.kind in kinds:
                message = f"sequence batching specifies multiple {kind} tensors for {config.name}"
                found.add(
                    "control-kind", message, where, found=f"{kind} twice", expected="each kind once"
                )
            kinds.add(control.kind)
            _check_control(config, control, kind, where, found)


def _check_control(
    config: ModelConfig, control: Control, kind: str, path: str, found: ProblemList
) -> None:
    given = [name for name in _FLAGS if len(getattr(control, name))]
    if control.kind == Control.CONTROL_SEQUENCE_CORRID:
        _check_correlation(config, control, given, path, found)
    elif not given:
        message = f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {kind} for {config.name}"
        fix = "add int32_false_true: [ 0, 1 ]"
        found.add(
            "control-values",
            message,
            path,
            found="no values",
            expected="the tensor's values for false and for true",
            fix=fix,
        )
    elif len(given) > 1:
        message = (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
            f"for {kind} for {config.name}"
        )
        found.add(
            "control-values", message, path, found=" and ".join(given), expected="one of them"
        )
    elif len(getattr(control, given[0])) != 2:
        message = f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {config.name}"
        count = len(getattr(control, given[0]))
        shown = "1 value" if count == 1 else f"{count} values"
        found.add(
            "control-values",
            message,
            f"{path}.{given[0]}",
            found=shown,
            expected="2 values: for false and for true",
        )


def _check_correlation(
    config: ModelConfig, control: Control, given: list[str], path: str, found: ProblemList
) -> None:
    if given:
        message = (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for CONTROL_SEQUENCE_CORRID for {config.name}"
        )
        fix = "remove it and set data_type"
        found.add(
            "control-values",
            message,
            f"{path}.{given[0]}",
            found=given[0],
            expected="a data_type: the id is the value",
            fix=fix,
        )
    if control.data_type not in _CORRID_TYPES:
        message = (
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {config.name}. "
            "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
        shown = (
            DataType.Name(control.data_type)
            if control.data_type in DataType.values()
            else str(control.data_type)
        )
        fix = "write data_type: TYPE_UINT64"
        found.add(
            "control-type",
            message,
            f"{path}.data_type",
            found=shown,
            expected="an integer type or TYPE_STRING",
            fix=fix,
        )
