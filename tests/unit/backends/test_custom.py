"""Custom backends: an ArrayBackend gets and returns arrays, and a package registers it with an
entry point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.backends.custom import Array, ArrayBackend, Context
from tests.unit.backends.framework import arrays, load, parameters, request, tensor

CONFIG = {
    "max_batch_size": 8,
    "input": [tensor("x", "TYPE_FP32", [2])],
    "output": [tensor("y", "TYPE_FP32", [2]), tensor("names", "TYPE_STRING", [1])],
    "parameters": parameters(factor="3"),
}


class Scale(ArrayBackend):
    def open(self, context: Context) -> None:
        self.context = context
        self.factor = float(context.parameters["factor"])
        self.batches: list[int] = []

    def run(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
        x = inputs["x"]
        self.batches.append(len(x))
        if np.isnan(x).any():
            raise ValueError("no numbers")
        return {
            "y": x.astype(np.float64) * self.factor,
            "names": [[f"row {at}"] for at in range(len(x))],
        }


def test_runs_requests_as_a_batch(tmp_path: Path) -> None:
    served = load(Scale, tmp_path / "m", CONFIG)
    first, second = served.execute(
        request(x=np.ones((2, 2), np.float32)), request(["y"], x=np.zeros((1, 2), np.float32))
    )
    assert served.backend.batches == [3]
    assert arrays(first)["y"].tolist() == [[3, 3], [3, 3]]
    assert arrays(first)["y"].dtype == np.float32
    assert arrays(first)["names"].tolist() == [[b"row 0"], [b"row 1"]]
    assert list(arrays(second)) == ["y"]


def test_passes_a_context_to_the_backend(tmp_path: Path) -> None:
    served = load(Scale, tmp_path / "m", CONFIG, "weights.npz", {"threads": "2"})
    context = served.backend.context
    assert (context.model_name, context.version, context.directory) == (
        "m",
        1,
        tmp_path / "m" / "1",
    )
    assert (context.model_filename, context.device, context.options) == (
        "weights.npz",
        "cpu",
        {"threads": "2"},
    )
    assert context.config["max_batch_size"] == 8


def test_an_exception_fails_its_own_request(tmp_path: Path) -> None:
    served = load(Scale, tmp_path / "m", CONFIG)
    good, bad = served.execute(
        request(x=np.ones((1, 2), np.float32)), request(x=np.full((1, 2), np.nan, np.float32))
    )
    assert arrays(good)["y"].tolist() == [[3, 3]]
    assert bad.error is not None
    assert (bad.error.code, bad.error.message) == ("INTERNAL", "ValueError: no numbers")


class Forgetful(ArrayBackend):
    def run(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
        return {"y": inputs["x"] if len(inputs["x"]) > 1 else inputs["x"][:0]}


def test_reports_missing_and_short_outputs(tmp_path: Path) -> None:
    served = load(Forgetful, tmp_path / "m", CONFIG)
    (missing,) = served.execute(request(x=np.ones((2, 2), np.float32)))
    assert missing.error is not None
    assert missing.error.message == "the backend returned no output 'names', only y"
    (short,) = served.execute(request(["y"], x=np.ones((1, 2), np.float32)))
    assert short.error is not None
    assert short.error.message == (
        "failed to split the output tensor 'y' in responses: expected batch size of 1 in model "
        "output, got shape [0,2]"
    )


def test_converts_outputs_only_within_their_kind(tmp_path: Path) -> None:
    class Text(ArrayBackend):
        def run(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
            return {"y": np.array([["a", "b"]])}

    (response,) = load(Text, tmp_path / "m", CONFIG).execute(
        request(["y"], x=np.ones((1, 2), np.float32))
    )
    assert response.error is not None
    assert (
        response.error.message
        == "unexpected datatype TYPE_STRING for inference output 'y', expecting TYPE_FP32"
    )


def test_finds_the_backend_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from naiad.core.installed_backends import installed_backends
    from naiad.worker.import_backend import find_backend, import_backend

    info = tmp_path / "linear_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[naiad.backends]\nlinear = linear_backend_of_test:LinearBackend\n"
    )
    (tmp_path / "linear_backend_of_test.py").write_text("class LinearBackend:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_backends.cache_clear()
    try:
        assert find_backend("linear") == "linear_backend_of_test:LinearBackend"
        assert import_backend("linear").__name__ == "LinearBackend"
        assert find_backend("unheard-of") is None
        assert find_backend("python") == "naiad.backends.python.backend:PythonBackend"
    finally:
        installed_backends.cache_clear()


def test_the_example_is_the_backend_of_the_documentation() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs/custom-backend.md").read_text()
    assert (
        f"```python\n{(root / 'examples/custom_backend/linear_backend/__init__.py').read_text()}```"
        in page
    )
