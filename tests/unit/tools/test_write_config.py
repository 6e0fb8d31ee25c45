"""Tests that `naiad check --write` writes missing config files and never changes existing ones."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from naiad.cli.main import naiad
from naiad.errors import NaiadError
from naiad.ipc.completion_request import Example
from naiad.tools.write_config import parse_example
from tests import onnx_file

needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed (pip install '.[pytorch]')",
)


def check(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        naiad, ["check", *arguments], standalone_mode=False, catch_exceptions=False
    )
    return result.return_value, result.output


@needs_onnx
def test_writes_the_config_of_an_onnx_model(tmp_path: Path) -> None:
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo/1/model.onnx").write_bytes(onnx_file.identity("INT64", ["N", 2, "k"]))
    code, output = check("--write", str(tmp_path))
    assert (code, output) == (0, f"{tmp_path}/echo/config.pbtxt: written\nno problems found\n")
    assert (tmp_path / "echo/config.pbtxt").read_text() == (
        'backend: "onnxruntime"\nmax_batch_size: 4\n'
        'input [\n  { name: "x" data_type: TYPE_INT64 dims: [ 2, -1 ] }\n]\n'
        'output [\n  { name: "y" data_type: TYPE_INT64 dims: [ 2, -1 ] }\n]\n'
        "dynamic_batching { }\n"
    )


@needs_onnx
def test_does_not_change_an_existing_config(tmp_path: Path) -> None:
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo/1/model.onnx").write_bytes(onnx_file.identity("INT64", ["N"]))
    (tmp_path / "echo/config.pbtxt").write_text('backend: "onnxruntime"\n')
    assert check("--write", str(tmp_path)) == (0, "no problems found\n")
    assert (tmp_path / "echo/config.pbtxt").read_text() == 'backend: "onnxruntime"\n'


@needs_onnx
def test_reports_an_invalid_model_file(tmp_path: Path) -> None:
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad/1/model.onnx").write_bytes(b"no model")
    code, output = check("--write", str(tmp_path))
    assert code == 1
    assert f"{tmp_path}/bad/config.pbtxt: onnx runtime error: " in output
    assert not (tmp_path / "bad/config.pbtxt").exists()


@pytest.fixture
def torchscript(tmp_path: Path) -> Path:
    import torch

    from tests.unit.backends.torch.torch_models import Conv, Linear

    for name, module in (("mnist-cnn", Conv()), ("linear", Linear())):
        (tmp_path / name / "1").mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(module).save(str(tmp_path / name / "1/model.pt"))
    return tmp_path


@needs_torch
def test_writes_the_config_of_a_torchscript_model_from_an_example(torchscript: Path) -> None:
    code, output = check("--write", "--example", "image=1,1,32,32", str(torchscript))
    assert f"{torchscript}/mnist-cnn/config.pbtxt: written" in output
    assert (torchscript / "mnist-cnn/config.pbtxt").read_text() == (
        'backend: "pytorch"\nmax_batch_size: 4\n'
        'input [\n  { name: "image" data_type: TYPE_FP32 dims: [ 1, 32, 32 ] }\n]\n'
        'output [\n  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] }\n]\n'
        "dynamic_batching { }\n"
    )
    # The input of the other model has another name.
    assert code == 1
    assert "model 'linear' takes x: give --example x=SHAPE" in output


@needs_torch
def test_rejects_an_example_that_does_not_fit_the_model(torchscript: Path) -> None:
    _, output = check("--write", "--example", "x=1,5", str(torchscript))
    assert (
        "model 'linear' does not accept the example x=[1, 5]:FP32:"
        " RuntimeError: mat1 and mat2 shapes cannot be multiplied" in output
    )


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("x=1,3,224,224", Example("x", [1, 3, 224, 224])),
        ("1x32x32", Example("", [1, 32, 32])),
        ("ids=1,16:int64", Example("ids", [1, 16], "INT64")),
        ("ARGS[0]=7:TYPE_FP16", Example("ARGS[0]", [7], "FP16")),
    ],
)
def test_parses_examples(text: str, example: Example) -> None:
    assert parse_example(text) == example


@pytest.mark.parametrize("text", ["", "x", "x=", "x=1,-1", "x=1:FLOAT"])
def test_rejects_invalid_examples(text: str) -> None:
    with pytest.raises(NaiadError, match="--example is"):
        parse_example(text)


def test_rejects_an_example_without_write(tmp_path: Path) -> None:
    result = CliRunner().invoke(naiad, ["check", "--example", "x=1", str(tmp_path)])
    assert result.exit_code == 2
    assert "--example requires --write" in result.output
