"""Workers are forked from a template that has imported the framework. A child must always be able
to load and run a model.

The template is a separate process, because pytest's process has threads. Each child has a deadline,
because the failure would be a child that hangs.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import onnx_file
from tests.onnx_file import Constant, Node, Value

CHILDREN = 12
SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
module, class_name, folder, file, children = sys.argv[1:]
# The template only imports.
backend_class = getattr(__import__(module, fromlist=[class_name]), class_name)
from tests.unit.backends.framework import load
INPUT = {"name": "INPUT__0", "data_type": "TYPE_FP32", "dims": [64]}
OUTPUT = {"name": "y", "data_type": "TYPE_FP32", "dims": [64]}
CONFIG = {"max_batch_size": 8, "input": [INPUT], "output": [OUTPUT]}
PARAMETERS = {"intra_op_thread_count": {"string_value": "2"}}

def child():
    signal.alarm(300)
    config = CONFIG if file == "model.pt" else {}
    served = load(backend_class, Path(folder), {**config, "parameters": PARAMETERS}, file)
    x = np.ones((4, 64), np.float32)
    name = "INPUT__0" if config else "x" if file == "model.onnx" else "input"
    for _ in range(20):
        outputs = served.infer(**{name: x})
    assert next(iter(outputs.values())).shape == (4, 64)

pids = []
for _ in range(int(children)):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    pids.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in pids]
sys.exit(0 if not any(statuses) else f"children ended with {statuses}")
"""


def _matmul() -> bytes:
    weights = np.random.default_rng(1).standard_normal((64, 64), np.float32)
    values = [Value("x", "FP32", ["N", 64])], [Value("y", "FP32", ["N", 64])]
    return onnx_file.model([Node("MatMul", ["x", "w"], ["y"])], *values, [Constant("w", weights)])


def _fork(module: str, class_name: str, folder: Path, file: str) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        SCRIPT,
        module,
        class_name,
        str(folder),
        file,
        str(CHILDREN),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert finished.returncode == 0, finished.stderr


def _needs(package: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed (pip install '.[{extra}]')",
    )


@_needs("onnxruntime", "onnx")
def test_onnxruntime(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(_matmul())
    _fork("naiad.backends.onnx.backend", "OnnxBackend", tmp_path / "m", "model.onnx")


@_needs("openvino", "openvino")
def test_openvino(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(_matmul())
    _fork("naiad.backends.openvino.backend", "OpenvinoBackend", tmp_path / "m", "model.onnx")


@_needs("torch", "pytorch")
def test_torchscript(tmp_path: Path) -> None:
    import torch

    jit = torch.jit
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        jit.script(torch.nn.Linear(64, 64)).save(str(tmp_path / "m/1/model.pt"))
    _fork("naiad.backends.torch.backend", "PytorchBackend", tmp_path / "m", "model.pt")


@_needs("torch", "pytorch")
def test_exported(tmp_path: Path) -> None:
    import torch

    (tmp_path / "m" / "1").mkdir(parents=True)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(
        torch.nn.Linear(64, 64), (torch.ones(2, 64),), dynamic_shapes=shapes
    )
    torch.export.save(program, str(tmp_path / "m/1/model.pt2"))
    _fork("naiad.backends.torch.exported", "PytorchBackend", tmp_path / "m", "model.pt2")
