"""ONNX files that are broken, found without onnxruntime; and what only onnxruntime finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from naiad.backends.onnx.file_fault import onnx_fault
from naiad.repository.check.onnx_session import session_fault
from tests import onnx_file
from tests.onnx_file import Constant, Node, Value

X, Y = Value("x", "FP32", [-1, 4]), Value("y", "FP32", [-1, 4])
WEIGHT = Constant("w", np.arange(16, dtype=np.float32).reshape(4, 4))


def matmul(weight: Constant = WEIGHT) -> bytes:
    return onnx_file.model([Node("MatMul", ["x", "w"], ["y"])], [X], [Y], [weight])


def fault(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    return onnx_fault(path)


def test_a_whole_file(tmp_path: Path) -> None:
    assert fault(tmp_path, matmul()) == ""
    assert fault(tmp_path, onnx_file.identity("BYTES", [-1])) == ""


def test_every_truncation_is_found(tmp_path: Path) -> None:
    content = matmul()
    for size in range(len(content)):
        assert fault(tmp_path, content[:size]), size


def test_a_file_whose_inside_is_missing(tmp_path: Path) -> None:
    """The length of the outermost message still fits if a download was filled up with zeros."""
    content = matmul()
    assert fault(tmp_path, content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            onnx_file.model([Node("MatMul", ["x", "v"], ["y"])], [X], [Y], [WEIGHT]),
            "MatMul reads tensor 'v', which nothing produces",
        ),
        (
            onnx_file.model([Node("Identity", ["x"], ["z"])], [X], [Y]),
            "nothing produces its output 'y'",
        ),
        (
            onnx_file.model([Node("", ["x"], ["y"])], [X], [Y]),
            "its graph has a node without an operator",
        ),
        (onnx_file.model([Node("Identity", ["x"], ["y"])], [X], []), "its graph has no outputs"),
        (
            matmul().replace(WEIGHT.array.tobytes(), WEIGHT.array.tobytes()[:60] + b"\x10\0\0\0"),
            "",
        ),
    ],
)
def test_a_graph_that_does_not_fit_together(tmp_path: Path, content: bytes, expected: str) -> None:
    assert fault(tmp_path, content) == expected


def test_a_weight_of_the_wrong_size(tmp_path: Path) -> None:
    content = matmul()
    # The second dimension of the weight becomes 5.
    at = content.index(b"\x08\x04\x08\x04\x10\x01") + 3
    assert fault(tmp_path, content[:at] + b"\x05" + content[at + 1 :]) == (
        "weight 'w' has 64 bytes, but its shape needs 80"
    )


def test_weights_in_another_file(tmp_path: Path) -> None:
    content = matmul(Constant("w", WEIGHT.array, "weights.bin"))
    assert fault(tmp_path, content) == "weight 'w' is in 'weights.bin', which is not there"
    (tmp_path / "weights.bin").write_bytes(bytes(60))
    assert fault(tmp_path, content) == "weight 'w' ends at byte 64 of 'weights.bin', which has 60"
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    assert fault(tmp_path, content) == ""


def test_no_bytes_make_the_check_fail(tmp_path: Path) -> None:
    content, generator = matmul(), np.random.default_rng(7)
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(4):
            changed[generator.integers(len(changed))] = generator.integers(256)
        fault(tmp_path, bytes(changed))


def test_what_only_onnxruntime_finds(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    content = onnx_file.model([Node("Nonsense", ["x"], ["y"])], [X], [Y])
    assert fault(tmp_path, content) == ""
    assert session_fault(tmp_path / "model.onnx").startswith("onnxruntime refuses it: ")
    assert fault(tmp_path, matmul()) == ""
    assert session_fault(tmp_path / "model.onnx") == ""
