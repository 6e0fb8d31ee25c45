"""`naiad init python|onnx|torchscript`: a repository with one model that serves at once.

In:  the kind, the name and where to write. Out: the files that were written, and a request to try.
Rule: nothing that exists is overwritten. An ONNX or TorchScript file of the user's is copied; for
      the first there is a small example without one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.files.new_folder import new_folder

PYTHON_MODEL = '''"""Doubles its input. Replace `execute` by your own code."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Runs once, before the first request: load weights here."""

    def execute(self, requests):
        """Gets a list of requests and returns as many responses, in the same order."""
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = pb_utils.Tensor("y", x * 2)
            responses.append(pb_utils.InferenceResponse([y]))
        return responses

    def finalize(self):
        """Runs once, when the model is unloaded."""
'''
PYTHON_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""
TORCHSCRIPT_CONFIG = """\
backend: "pytorch"
max_batch_size: 8
# The shape of one element, without the batch dimension. Correct them for your model.
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
"""
TORCHSCRIPT_EXPORT = '''"""Writes 1/model.pt. Put your own model here, then run: python export.py"""

from pathlib import Path

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
script = torch.jit.script(model)
script.save(str(Path(__file__).parent / "1" / "model.pt"))
'''
REQUEST = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]
}


def init_model(kind: str, out: Path, name: str, file: Path | None) -> list[Path]:
    """Returns the written paths. Raises NaiadError."""
    model = out / name
    if model.exists():
        raise invalid_arg(f"{model} exists already: give another --name or another directory")
    if file is not None and not file.is_file():
        raise invalid_arg(f"{file} is not a file")
    contents = starter_files(kind) if file is None else {}
    if file is not None and kind == "python":
        contents["1/model.py"] = file.read_bytes()
    elif file is not None and kind == "torchscript":
        contents["config.pbtxt"] = TORCHSCRIPT_CONFIG
    written = [model / relative for relative in contents]
    with new_folder(model) as made:
        (made / "1").mkdir()
        for relative, content in contents.items():
            data = content if isinstance(content, bytes) else content.encode()
            (made / relative).write_bytes(data)
        if file is not None and kind != "python":
            target = "1/model.onnx" if kind == "onnx" else "1/model.pt"
            shutil.copyfile(file, made / target)
            written.append(model / target)
    return sorted(written)


def starter_files(kind: str) -> dict[str, str | bytes]:
    """Path in the model's folder -> content of a small example."""
    contents: dict[str, str | bytes] = {"request.json": json.dumps(REQUEST) + "\n"}
    match kind:
        case "python":
            contents |= {"1/model.py": PYTHON_MODEL, "config.pbtxt": PYTHON_CONFIG}
        case "onnx":
            # An ONNX file tells its inputs and outputs, so it needs no config.
            contents["1/model.onnx"] = example_onnx()
        case _:
            contents |= {"config.pbtxt": TORCHSCRIPT_CONFIG, "export.py": TORCHSCRIPT_EXPORT}
    return contents


def example_onnx() -> bytes:
    """A model that adds its input to itself: `y = x + x`, FP32, any number of rows of 4."""
    node = _field(1, b"x") + _field(1, b"x") + _field(2, b"y") + _field(4, b"Add")
    graph = _field(1, node) + _field(2, b"double") + _field(11, _value(b"x"))
    graph += _field(12, _value(b"y"))
    opset = _number(2, 13)
    return _number(1, 8) + _field(7, graph) + _field(8, opset)


def _value(name: bytes) -> bytes:
    """A ValueInfoProto: FP32, shape [batch, 4]."""
    shape = _field(1, _field(2, b"batch")) + _field(1, _number(1, 4))
    return _field(1, name) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3, value])
