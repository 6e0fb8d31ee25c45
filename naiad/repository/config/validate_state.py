"""Rules for the implicit state of sequence models; part of validate."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching
from naiad.repository.config.problem_list import ProblemList
from naiad.repository.config.validate_io import dims_text


def check_states(config: ModelConfig, found: ProblemList) -> None:
    seen: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        count = len(state.initial_state)
        if count > 1:
            message = (
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
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
        message = f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
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
