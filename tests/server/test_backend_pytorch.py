"""PyTorch models behind a real server: TorchScript, torch.export without a config, a Python class,
and files that fail with a message."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server.harness import Server, naiad

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install '.[pytorch]')")

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2, x.sum(dim=1, keepdim=True)
"""
CLASS_CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [
  { name: "double" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "total" data_type: TYPE_FP32 dims: [ 1 ] }
]
dynamic_batching { }
"""


@pytest.fixture(scope="module")
def linear() -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 3).eval()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, linear: Any) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("pytorch")
    for name in ("exported", "class", "no_shapes", "pickled", "garbage"):
        (repository / name / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        torch.export.save(
            torch.export.export(linear, (torch.ones(2, 4),), dynamic_shapes=shapes),
            str(repository / "exported/1/model.pt2"),
        )
    (repository / "class/1/model.py").write_text(CLASS)
    (repository / "class/config.pbtxt").write_text(CLASS_CONFIG)
    (repository / "no_shapes/1/model.pt").write_bytes(
        (EXAMPLES / "pytorch/mnist-cnn/1/model.pt").read_bytes()
    )
    torch.save(linear, repository / "pickled/1/model.pt")
    (repository / "garbage/1/model.pt").write_bytes(b"no model")
    with naiad(
        [str(repository), str(EXAMPLES / "pytorch")],
        ["--exit-on-error=false", "--strict-readiness=false"],
    ) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.http) as opened:
        yield opened


def infer(client: Any, model: str, name: str, array: np.ndarray[Any, Any]) -> Any:
    tensor = triton.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor])


def test_torchscript_by_its_index_names(client: Any) -> None:
    import sys

    sys.path.append(str(EXAMPLES / "repository/digit_image/1"))
    try:
        resize = importlib.import_module("resize").resize
    finally:
        sys.path.pop()
    with np.load(EXAMPLES / "digits/test_digits.npz") as file:
        images = (
            np.stack([resize(image, 32, 32) for image in file["images"]])[:, None] / 16
        ).astype(np.float32)
        labels = file["labels"]
    scores = np.concatenate(
        [
            infer(client, "mnist-cnn", "INPUT__0", images[at : at + 32]).as_numpy("OUTPUT__0")
            for at in range(0, 450, 32)
        ]
    )
    accuracy = json.loads((EXAMPLES / "digits/accuracy.json").read_text())
    assert {"correct": int((scores.argmax(axis=1) == labels).sum()), "of": len(labels)} == accuracy


def test_an_exported_program_without_a_config(client: Any, linear: Any) -> None:
    x = np.random.default_rng(1).standard_normal((3, 4), np.float32)
    response = infer(client, "exported", "input", x).as_numpy("OUTPUT__0")
    np.testing.assert_allclose(
        response, linear(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    assert client.get_model_config("exported")["max_batch_size"] == 4


def test_a_python_class(client: Any) -> None:
    response = infer(client, "class", "x", np.array([[1, 2, 3]], np.float32))
    assert response.as_numpy("double").tolist() == [[2, 4, 6]]
    assert response.as_numpy("total").tolist() == [[6]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_shapes", 'input [\n  { name: "image" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }\n]'),
        ("pickled", "set parameter UNSAFE_ALLOW_PICKLE"),
        ("garbage", "'garbage/1/model.pt' is not a PyTorch file, or it is truncated (8 bytes)"),
    ],
)
def test_models_that_fail_with_a_message(server: Server, name: str, message: str) -> None:
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert index[name]["state"] == "UNAVAILABLE"
    assert message in index[name]["reason"]
    assert index["mnist-cnn"]["state"] == "READY"
