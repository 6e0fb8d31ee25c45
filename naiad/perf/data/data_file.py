"""Reads `--input-data FILE.json` and `--input-data FOLDER`, in perf_analyzer's formats.

    {"data": [{"INPUT0": [1, 2], "TEXT": {"content": ["a"], "shape": [1]}}, ...],
     "validation_data": [...]}

Binary content is {"b64": "..."}. `data` may also be a list of lists: the streams of a sequence
model. A folder has one file per input, with the input's name, which contains raw bytes, or lines of
text for strings.
Rule: every error message names the file, the step and the input.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.perf.data.dataset import Dataset, Step, TensorValue, fixed_shape
from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.settings.option import OptionError

GENAI_PERF_MODEL = "model"
"""genai-perf writes the model's name beside the tensors of every step."""


def read_json_files(
    paths: Sequence[Path], facts: ModelFacts, shapes: dict[str, tuple[int, ...]]
) -> Dataset:
    """Reads the streams of all files. Raises OptionError."""
    streams: list[list[Step]] = []
    expected: list[list[Step]] = []
    inputs = {tensor.name: tensor for tensor in facts.inputs}
    outputs = {tensor.name: tensor for tensor in facts.outputs}
    for path in paths:
        document = load_json(path)
        file_streams = _streams(path, document, "data", inputs, shapes)
        for number, stream in enumerate(file_streams):
            for step_number, step in enumerate(stream):
                _check_complete(f"{path}: stream {number}, step {step_number}", step, facts)
        streams += file_streams
        if "validation_data" in document:
            expected += _streams(path, document, "validation_data", outputs, {})
    if expected and [len(stream) for stream in expected] != [len(stream) for stream in streams]:
        raise OptionError(f"{paths[0]}: 'validation_data' must have as many steps as 'data'")
    return Dataset(streams, expected, is_from_file=True)


def load_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("data"), list)
        or not document["data"]
    ):
        raise OptionError(f"{path}: expected an object with a non-empty list 'data'")
    return document


def _streams(
    path: Path,
    document: dict[str, Any],
    key: str,
    tensors: dict[str, TensorFacts],
    shapes: dict[str, tuple[int, ...]],
) -> list[list[Step]]:
    entries = document[key]
    is_nested = entries and all(isinstance(entry, list) for entry in entries)
    streams: list[list[Step]] = []
    for number, stream in enumerate(entries if is_nested else [entries]):
        steps: list[Step] = []
        for step_number, step in enumerate(stream):
            where = f"{path}: {key}, stream {number}, step {step_number}"
            if not isinstance(step, dict):
                raise OptionError(
                    f"{where}: expected an object of tensors, got {type(step).__name__}"
                )
            steps.append(
                {
                    name: _tensor(where, name, value, tensors, shapes)
                    for name, value in step.items()
                    if name != GENAI_PERF_MODEL or name in tensors
                }
            )
        streams.append(steps)
    return streams


def _tensor(
    where: str,
    name: str,
    value: Any,
    tensors: dict[str, TensorFacts],
    shapes: dict[str, tuple[int, ...]],
) -> TensorValue:
    tensor = tensors.get(name)
    if tensor is None:
        raise OptionError(
            f"{where}: the model has no tensor '{name}'; its tensors are: {', '.join(tensors)}"
        )
    where = f"{where}, '{name}'"
    shape: tuple[int, ...] | None = None
    content = value
    if isinstance(value, dict) and "content" in value:
        content = value["content"]
        if "shape" in value:
            shape = tuple(value["shape"])
    raw, count = _content(where, content, tensor)
    if shape is None:
        shape = _shape_for(where, tensor, shapes, count)
    num_elements = math.prod(shape)
    if tensor.datatype == "BYTES":
        if count >= 0 and count != num_elements:
            raise OptionError(
                f"{where}: shape {list(shape)} needs {num_elements} strings, got {count}"
            )
    elif num_elements * DATATYPES[tensor.datatype].byte_size != len(raw):
        raise OptionError(
            f"{where}: shape {list(shape)} of {tensor.datatype} does not fit {len(raw)} bytes of"
            " content"
        )
    return TensorValue(shape, raw)


def _content(where: str, content: Any, tensor: TensorFacts) -> tuple[bytes, int]:
    """Returns the raw bytes and the number of elements."""
    if isinstance(content, dict) and "b64" in content:
        try:
            raw = base64.b64decode(content["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise OptionError(f"{where}: invalid base64: {error}") from None
        if tensor.datatype == "BYTES":
            return encode_byte_strings([raw]), 1
        return raw, len(raw) // DATATYPES[tensor.datatype].byte_size
    flat = list(_flatten(content))
    if tensor.datatype == "BYTES":
        return encode_byte_strings(flat), len(flat)
    datatype = DATATYPES[tensor.datatype]
    try:
        if tensor.datatype == "BF16":
            return np.asarray(flat, np.float32).view(np.uint16)[1::2].tobytes(), len(flat)
        return np.asarray(flat, datatype.numpy).tobytes(), len(flat)
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(f"{where}: expected {tensor.datatype} values: {error}") from None


def _flatten(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [content]
    return [leaf for entry in content for leaf in _flatten(entry)]


def _shape_for(
    where: str, tensor: TensorFacts, shapes: dict[str, tuple[int, ...]], count: int
) -> tuple[int, ...]:
    """Returns the shape to send. The number of elements determines a single dynamic dimension."""
    if tensor.name in shapes or -1 not in tensor.shape:
        return fixed_shape(tensor, shapes)
    fixed = math.prod(dimension for dimension in tensor.shape if dimension > 0)
    if tensor.shape.count(-1) > 1 or count < 0 or fixed == 0 or count % fixed:
        raise OptionError(
            f"{where}: the model's shape is {list(tensor.shape)}, so the file must have 'content'"
            f" and 'shape', or set --shape {tensor.name}:..."
        )
    return tuple(count // fixed if dimension < 0 else dimension for dimension in tensor.shape)


def _check_complete(where: str, step: Step, facts: ModelFacts) -> None:
    missing = [
        tensor.name for tensor in facts.inputs if not tensor.is_optional and tensor.name not in step
    ]
    if missing:
        raise OptionError(f"{where}: no value for input '{missing[0]}'")


def read_folder(folder: Path, facts: ModelFacts, shapes: dict[str, tuple[int, ...]]) -> Dataset:
    step: Step = {}
    for tensor in facts.inputs:
        path = folder / tensor.name
        if not path.is_file():
            if tensor.is_optional:
                continue
            raise OptionError(f"{folder} has no file for the input '{tensor.name}'")
        shape = fixed_shape(tensor, shapes)
        count = math.prod(shape)
        if tensor.datatype == "BYTES":
            lines = path.read_bytes().splitlines()
            if len(lines) != count:
                raise OptionError(
                    f"{path} has {len(lines)} lines, but shape {list(shape)} needs {count} strings"
                )
            step[tensor.name] = TensorValue(shape, encode_byte_strings(lines))
            continue
        raw = path.read_bytes()
        if len(raw) != count * DATATYPES[tensor.datatype].byte_size:
            raise OptionError(
                f"{path} has {len(raw)} bytes, but shape {list(shape)} of {tensor.datatype} needs"
                f" {count} elements"
            )
        step[tensor.name] = TensorValue(shape, raw)
    return Dataset([[step]], is_from_file=True)
