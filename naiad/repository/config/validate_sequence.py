"""Rules for sequence batching: control inputs, implicit state, and the batches of `oldest`. Part of
validate."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import (
    TYPE_INT32,
    TYPE_INT64,
    TYPE_STRING,
    TYPE_UINT32,
    TYPE_UINT64,
    DataType,
    ModelConfig,
    ModelSequenceBatching,
)
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.validate_batching import check_preferred_sizes
from naiad.repository.config.validate_io import dims_text

Control = ModelSequenceBatching.Control
MAX_SLOTS = 1 << 20
_FLAGS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID_TYPES = (TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING)


def check_sequence_batching(config: ModelConfig, found: ProblemList) -> None:
    if not config.HasField("sequence_batching"):
        return
    if config.response_cache.enable:
        message = (
            f"Response Cache does not currently support model {config.name} with sequence "
            "batching scheduler. "
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
        check_preferred_sizes(
            config, sizes, f"{path}.oldest", "sequence batching preferred batch size", found
        )
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        message = (
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for "
            f"{config.name}"
        )
        shown = str(batching.direct.minimum_slot_utilization)
        found.add(
            "slot-utilization",
            message,
            f"{path}.direct.minimum_slot_utilization",
            found=shown,
            expected="a share of the slots, 0.0 to 1.0",
            fix="write 0.5 for half of them",
        )
    _check_slots(config, found)
    _check_states(config, found)


def _check_slots(config: ModelConfig, found: ProblemList) -> None:
    """Each instance has a table with a row for each sequence that it may hold."""
    batching = config.sequence_batching
    is_oldest = batching.HasField("oldest") and bool(batching.oldest.max_candidate_sequences)
    slots = batching.oldest.max_candidate_sequences if is_oldest else config.max_batch_size
    if not 0 <= slots <= MAX_SLOTS and (is_oldest or slots > 0):
        path = "sequence_batching.oldest.max_candidate_sequences"
        found.add(
            "sequence-slots",
            f"an instance of {config.name} would hold {slots} sequences; the server allows "
            f"{MAX_SLOTS}",
            path if is_oldest else "max_batch_size",
            found=str(slots),
            expected=f"0 to {MAX_SLOTS}",
        )


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
            message = (
                f"sequence batching control tensor '{control_input.name}' is specified for "
                f"multiple control kinds for {config.name}"
            )
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
        message = (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {config.name}"
        )
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
            "sequence batching specifies more than one from 'int32_false_true', "
            "'fp32_false_true' and 'bool_false_true' "
            f"for {kind} for {config.name}"
        )
        found.add(
            "control-values", message, path, found=" and ".join(given), expected="one of them"
        )
    elif len(getattr(control, given[0])) != 2:
        message = (
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for "
            f"{config.name}"
        )
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
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
            "or 'bool_false_true' "
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
            "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and "
            "TYPE_STRING"
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


def _check_states(config: ModelConfig, found: ProblemList) -> None:
    seen: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        count = len(state.initial_state)
        if count > 1:
            message = (
                f"initial_state field for state input '{state.input_name}' must contain "
                "exactly one or zero element. "
                f"Found '{count}' elements."
            )
            found.add(
                "initial-state",
                message,
                f"{path}.initial_state[1]",
                found=f"{count} initial states",
                expected="at most 1",
            )
        elif count == 1:
            _check_initial_state(state, seen, f"{path}.initial_state[0]", found)


def _check_initial_state(
    state: ModelSequenceBatching.State, seen: set[str], path: str, found: ProblemList
) -> None:
    initial = state.initial_state[0]
    name = state.input_name
    if initial.data_type != state.data_type:
        message = (
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            "state data type."
        )
        types = [
            DataType.Name(kind) if kind in DataType.values() else str(kind)
            for kind in (initial.data_type, state.data_type)
        ]
        found.add("initial-state", message, f"{path}.data_type", found=types[0], expected=types[1])
    if not initial.name:
        message = f"Field 'name' must be set when using initial_state for state input '{name}'."
        found.add(
            "initial-state",
            message,
            path,
            found="no name",
            expected="a name for this initial state",
        )
    if name in seen:
        message = f"State input name '{name}' specified more than once."
        found.add(
            "initial-state", message, path, found=f"'{name}' twice", expected="one state per input"
        )
    seen.add(name)
    shapes = f"dims {dims_text(initial.dims)}"
    if len(initial.dims) != len(state.dims):
        message = (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
        found.add(
            "initial-state",
            message,
            f"{path}.dims",
            found=shapes,
            expected=f"as many as in the state's {dims_text(state.dims)}",
        )
    elif -1 in initial.dims:
        message = (
            f"'initial_state' field for state input name '{name}' contains variable dimensions."
        )
        fix = (
            "write the real size: the first request of a sequence needs a state of a definite shape"
        )
        found.add("initial-state", message, f"{path}.dims", found=shapes, expected="no -1", fix=fix)
