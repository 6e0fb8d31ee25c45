from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.scheduling.sequence.implicit_state import ImplicitState, read_state


def read(state: str, folder: Path, max_batch_size: int = 2, outputs: str = "") -> ImplicitState:
    text = (
        f'name: "m" max_batch_size: {max_batch_size} {outputs} sequence_batching '
        f"{{ state {{ {state} }} }}"
    )
    return read_state(parse_text(text, ModelConfig, "").message, folder)


NAMES = 'input_name: "in" output_name: "out"'


def test_zeros_of_size_1_where_the_size_varies(tmp_path: Path) -> None:
    (state,) = read(f"{NAMES} data_type: TYPE_FP32 dims: [ -1, 3 ]", tmp_path).tensors
    assert (state.output_name, state.initial.name, state.initial.shape) == ("out", "in", [1, 1, 3])
    assert state.initial.as_numpy().tolist() == [[[0, 0, 0]]]


def test_without_batching_and_as_text(tmp_path: Path) -> None:
    (state,) = read(
        f"{NAMES} data_type: TYPE_STRING dims: [ 2 ]", tmp_path, max_batch_size=0
    ).tensors
    assert state.initial.as_numpy().tolist() == [b"", b""]


def test_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "f").write_bytes(np.array([4, 5], np.int32).tobytes())
    initial = 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2 ] data_file: "f" }'
    (state,) = read(f"{NAMES} data_type: TYPE_INT32 dims: [ -1 ] {initial}", tmp_path).tensors
    assert state.initial.as_numpy().tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            "short",
            "initial_state setting expects 8 bytes, but the data provided from short only has 3 "
            "bytes.",
        ),
        ("gone", "failed to read initial state from 'gone': No such file or directory"),
        (
            "../short",
            "initial state file '../short' lies outside of the model's folder 'initial_state'",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "short").write_bytes(b"abc")
    initial = f'initial_state {{ name: "i" data_type: TYPE_INT32 dims: [ 2 ] data_file: "{file}" }}'
    with pytest.raises(NaiadError) as caught:
        read(f"{NAMES} data_type: TYPE_INT32 dims: [ 2 ] {initial}", tmp_path)
    assert caught.value.message == words


def test_a_state_that_the_model_leaves_out_stays_as_it_was(tmp_path: Path) -> None:
    state = read(f"{NAMES} data_type: TYPE_UINT8 dims: [ 1 ]", tmp_path)
    before = state.initial()
    assert state.next(before, [Tensor("y", "UINT8", [1, 1], b"\1")]) == before
    after = state.next(before, [Tensor("out", "UINT8", [1, 2], b"\1\2")])
    assert after["out"] == Tensor("in", "UINT8", [1, 2], b"\1\2")


def test_only_states_that_are_outputs_too_can_be_seen(tmp_path: Path) -> None:
    state = f"{NAMES} data_type: TYPE_UINT8 dims: [ 1 ]"
    assert read(state, tmp_path).hidden_outputs == {"out"}
    assert (
        read(
            state, tmp_path, outputs='output { name: "out" data_type: TYPE_UINT8 dims: 1 }'
        ).hidden_outputs
        == frozenset()
    )
