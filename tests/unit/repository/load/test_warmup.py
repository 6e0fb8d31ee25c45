from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from naiad.errors import Code, NaiadError
from naiad.instances.warmup import WarmupSample
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.load.warmup import read_warmup
from naiad.repository.model import build_spec

INPUT = (
    'input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "y" data_type: TYPE_FP32 '
    "dims: 2 }"
)


def read(text: str, folder: Path, io: str = INPUT, max_batch_size: int = 8) -> list[WarmupSample]:
    config: ModelConfig = parse_text(
        f'name: "m" max_batch_size: {max_batch_size} {io} {text}', ModelConfig, ""
    ).message
    return read_warmup(config, build_spec(config, 1, [1], folder), folder)


def sample(given: str, batch_size: int = 1, extra: str = "") -> str:
    return (
        f'model_warmup {{ name: "s" batch_size: {batch_size} inputs {{ key: "x" value {{ {given} '
        f"}} }} {extra} }}"
    )


FLOATS = "data_type: TYPE_FP32 dims: 2"


def test_zeros_with_a_batch_dimension(tmp_path: Path) -> None:
    (found,) = read(sample(f"{FLOATS} zero_data: true", 3, "count: 2"), tmp_path)
    assert (found.name, found.batch_size, found.count) == ("s", 3, 2)
    assert found.inputs[0].as_numpy().tolist() == [[0, 0]]


def test_without_batching(tmp_path: Path) -> None:
    (found,) = read(sample(f"{FLOATS} zero_data: true"), tmp_path, max_batch_size=0)
    assert found.inputs[0].shape == [2]
    assert found.count == 1


def test_a_sample_of_batch_size_0_is_skipped(tmp_path: Path) -> None:
    assert read(sample(f"{FLOATS} zero_data: true", 0), tmp_path) == []


@pytest.mark.parametrize(
    "name", ["BOOL", "UINT8", "INT64", "FP16", "FP32", "FP64", "BF16", "STRING"]
)
def test_random_data_of_every_kind_is_small(tmp_path: Path, name: str) -> None:
    io = INPUT.replace("TYPE_FP32 dims: 2 } output", f"TYPE_{name} dims: 40 }} output")
    (found,) = read(sample(f"data_type: TYPE_{name} dims: 40 random_data: true"), tmp_path, io)
    values = found.inputs[0].as_numpy().ravel()
    if name == "STRING":
        assert set(values) == {b""}
    elif name == "BF16":
        assert values.max() <= 0x3F80
    else:
        assert values.min() >= 0
        assert values.max() <= 1
        assert len(set(values.tolist())) > 1


def test_data_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (found,) = read(sample(f'{FLOATS} input_data_file: "data"'), tmp_path)
    assert found.inputs[0].as_numpy().tolist() == [[1, 2]]


def test_strings_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(struct.pack("<I", 3) + b"abc" + struct.pack("<I", 0))
    io = INPUT.replace("TYPE_FP32 dims: 2 } output", "TYPE_STRING dims: 2 } output")
    (found,) = read(sample('data_type: TYPE_STRING dims: 2 input_data_file: "data"'), tmp_path, io)
    assert found.inputs[0].as_numpy().tolist() == [[b"abc", b""]]


def test_a_sequence_model_gets_the_controls_and_states_that_its_sample_leaves_out(
    tmp_path: Path,
) -> None:
    sequence = """sequence_batching {
      control_input {
        name: "START"
        control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 7 ] }
      }
      control_input {
        name: "READY"
        control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }
      }
      state { input_name: "before" output_name: "after" data_type: TYPE_INT32 dims: [ -1 ] }
    }"""
    given = 'inputs { key: "READY" value { data_type: TYPE_BOOL dims: 1 zero_data: true } }'
    (found,) = read(sequence + sample(f"{FLOATS} zero_data: true", extra=given), tmp_path)
    inputs = {tensor.name: tensor.as_numpy().ravel().tolist() for tensor in found.inputs}
    assert inputs == {"x": [0, 0], "READY": [False], "START": [7], "before": [0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            sample("data_type: TYPE_FP32 dims: -1 zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'x'",
        ),
        (
            sample(f"{FLOATS} zero_data: true", 9),
            "failed to run warmup sample 's': batch size 9 for 'm', max allowed is 8; ",
        ),
        (
            sample("data_type: TYPE_INT32 dims: 2 zero_data: true"),
            "[request id: <id_unknown>] inference input 'x' data-type is 'INT32', but model "
            "'m' expects 'FP32'",
        ),
        (
            sample(f'{FLOATS} input_data_file: "short"'),
            "warmup setting expects 8 bytes, but the data provided from short only has 3 bytes",
        ),
        (
            sample(f'{FLOATS} input_data_file: "../secret"'),
            "warmup file '../secret' is outside the model's folder 'warmup'",
        ),
        (
            'model_warmup { name: "s" batch_size: 1 inputs { key: "z" value { data_type: '
            "TYPE_FP32 dims: 2 zero_data: true } } }",
            "unexpected inference input 'z' for model 'm'",
        ),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(bytes(100))
    with pytest.raises(NaiadError) as caught:
        read(text, tmp_path)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


def test_a_missing_file_is_reported_without_the_servers_paths(tmp_path: Path) -> None:
    with pytest.raises(NaiadError) as caught:
        read(sample(f'{FLOATS} input_data_file: "gone"'), tmp_path)
    assert (
        caught.value.message
        == "failed to open text file for read warmup/gone: No such file or directory"
    )
