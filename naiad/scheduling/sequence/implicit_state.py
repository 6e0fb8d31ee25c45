"""Implicit state: what a sequence model returns as `output_name` is its input `input_name` for the
next request of that sequence.

In:  `sequence_batching.state` of a ModelConfig and the files that it names. Out: initial tensors,
     and which output becomes which input.
Clients do not send the state, and they see it only if the config lists it as an output.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.files.safe_path import path_inside
from naiad.pb.model_config_pb2 import ModelConfig, ModelSequenceBatching


class StateTensor(msgspec.Struct, frozen=True):
    output_name: str
    initial: Tensor
    """The first state, as the input of the model."""


class ImplicitState(msgspec.Struct, frozen=True):
    tensors: list[StateTensor]
    hidden_outputs: frozenset[str]
    """States that clients cannot request."""

    def initial(self) -> dict[str, Tensor]:
        """The first states, by output name."""
        return {state.output_name: state.initial for state in self.tensors}

    def output_names(self) -> list[str]:
        return [state.output_name for state in self.tensors]

    def next(self, before: dict[str, Tensor], outputs: list[Tensor]) -> dict[str, Tensor]:
        """Returns the states for the next request. A state that the model leaves out stays as it
        was."""
        after = dict(before)
        for tensor in outputs:
            if tensor.name in after:
                name = after[tensor.name].name
                after[tensor.name] = Tensor(name, tensor.datatype, tensor.shape, tensor.data)
        return after


def read_state(config: ModelConfig, model_dir: Path) -> ImplicitState:
    """Raises NaiadError when a file of initial state is missing or too short."""
    outputs = {output.name for output in config.output}
    states = config.sequence_batching.state
    return ImplicitState(
        [StateTensor(state.output_name, _initial(config, state, model_dir)) for state in states],
        frozenset(state.output_name for state in states if state.output_name not in outputs),
    )


def _initial(config: ModelConfig, state: ModelSequenceBatching.State, model_dir: Path) -> Tensor:
    """A variable dimension has size 1 unless an initial state says otherwise, as under Triton."""
    source = state.initial_state[0] if state.initial_state else state
    dims = [max(dim, 1) for dim in source.dims]
    shape = [1, *dims] if config.max_batch_size > 0 else dims
    datatype = BY_CONFIG_NUMBER[state.data_type]
    count = prod(dims)
    size = count * datatype.byte_size
    data = bytes(size) if datatype.byte_size else encode_byte_strings([b""] * count)
    if state.initial_state and state.initial_state[0].WhichOneof("state_data") == "data_file":
        data = _read(model_dir / "initial_state", state.initial_state[0].data_file, size)
    return Tensor(state.input_name, datatype.name, shape, data)


def _read(folder: Path, name: str, size: int) -> bytes:
    path = path_inside(folder, name)
    if path is None:
        raise invalid_arg(
            f"initial state file '{name}' lies outside of the model's folder 'initial_state'"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid_arg(
            f"failed to read initial state from '{name}': {error.strerror}"
        ) from error
    if len(data) < size:
        raise invalid_arg(
            f"initial_state setting expects {size} bytes, but the data provided from {name} only "
            f"has {len(data)} bytes."
        )
    return data[:size] if size else data
