"""Repositories of small models, written for the server tests of framework backends."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests import onnx_file
from tests.onnx_file import Constant, Node, Value

WEIGHTS = np.linspace(-1, 1, 64 * 16, dtype=np.float32).reshape(64, 16)


def add(repository: Path, name: str, file: str, content: bytes, config: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / file).write_bytes(content)
    if config:
        (repository / name / "config.pbtxt").write_text(config)


def linear() -> bytes:
    values = [Value("x", "FP32", ["N", 64])], [Value("y", "FP32", ["N", 16])]
    return onnx_file.model([Node("MatMul", ["x", "w"], ["y"])], *values, [Constant("w", WEIGHTS)])


def accumulator() -> bytes:
    """The output y and the new state are the old state plus x. A sequence starts at zero."""
    nodes = [Node("Add", ["x", "before"], ["y"]), Node("Identity", ["y"], ["after"])]
    inputs = [Value("x", "FP32", ["N", 1]), Value("before", "FP32", ["N", 1])]
    return onnx_file.model(
        nodes, inputs, [Value("y", "FP32", ["N", 1]), Value("after", "FP32", ["N", 1])]
    )


ACCUMULATOR = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  oldest { max_candidate_sequences: 8 }
  state [ { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""


def lookup() -> bytes:
    """Fails for an index outside of the table."""
    table = Constant("table", np.arange(5, dtype=np.float32) * 10)
    values = [Value("x", "INT64", ["N", 1])], [Value("y", "FP32", ["N", 1])]
    return onnx_file.model([Node("Gather", ["table", "x"], ["y"])], *values, [table])


def heavy(num_floats: int) -> bytes:
    """Looks up one number in a table of `num_floats` numbers."""
    values = [Value("x", "INT64", [1])], [Value("y", "FP32", [1])]
    return onnx_file.model(
        [Node("Gather", ["w", "x"], ["y"])],
        *values,
        [Constant("w", np.ones(num_floats, np.float32))],
    )
