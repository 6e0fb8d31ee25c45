"""Tests where dropped files go, and which ones are refused."""

from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.repository.deploy.layout import plan_layout


@pytest.mark.parametrize(
    ("paths", "backend", "name", "targets"),
    [
        (["digits.pt"], "pytorch", "digits", ["3/model.pt"]),
        (["model.onnx", "labels.txt"], "onnxruntime", "", ["3/model.onnx", "labels.txt"]),
        (["a/model.onnx", "a/weights.bin"], "onnxruntime", "a", ["3/model.onnx", "3/weights.bin"]),
        (["net.xml", "net.bin"], "openvino", "net", ["3/model.xml", "3/model.bin"]),
        (
            ["model.py", "pre.py", "requirements.txt"],
            "python", "", ["3/model.py", "3/pre.py", "requirements.txt"],
        ),
        (["net.pt", "model.py"], "pytorch", "net", ["3/model.pt", "3/model.py"]),
        (
            ["tiny/config.json", "tiny/model.safetensors"],
            "llm", "tiny", ["3/config.json", "3/model.safetensors"],
        ),
        (["SmolLM.Q4.gguf"], "llm", "SmolLM.Q4", ["3/SmolLM.Q4.gguf"]),
        (["m/config.pbtxt", "m/1/model.py"], "", "m", ["config.pbtxt", "1/model.py"]),
        (["m/2/model.onnx"], "", "m", ["2/model.onnx"]),
        (["2/model.onnx"], "", "", ["2/model.onnx"]),
    ],
)  # fmt: skip
def test_every_file_gets_its_place(
    paths: list[str], backend: str, name: str, targets: list[str]
) -> None:
    layout = plan_layout(paths)
    assert (layout.backend, layout.name) == (backend, name)
    assert [layout.target(path, 3) for path in paths] == targets


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "there are no files"),
        (["model.plan"], "needs TensorRT"),
        (["saved.h5"], "Keras models are not served"),
        (["model.safetensors"], "hand over the whole checkpoint folder"),
        (["notes.md"], "none of the files is a model (notes.md); expected a .onnx file"),
        (["a.onnx", "b.onnx"], "a.onnx, b.onnx could each be the model"),
    ],
)
def test_what_is_not_a_model_is_refused_with_the_way_to_one(paths: list[str], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        plan_layout(paths)
    assert message in caught.value.message
