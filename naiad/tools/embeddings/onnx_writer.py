"""Writes an ONNX file: nodes and constants -> the bytes of a ModelProto, without the package onnx.

Rule: field numbers are those of onnx.proto. protobuf reads no file above 2 GiB, so the constants of
      a large model are in a second file next to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

OPSET = 20
IR_VERSION = 9
FLOAT, INT64 = 1, 7
MAX_FILE_BYTES = 1 << 30
MIN_EXTERNAL_BYTES = 1024
_ALIGNMENT = 4096
Array: TypeAlias = np.ndarray[Any, Any]


class OnnxModel:
    """Collects nodes and constants. Every name is given once."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: dict[str, Array] = {}

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        node = b"".join(_text(1, name) for name in inputs) + _text(2, output) + _text(4, operator)
        for name, value in attributes.items():
            node += _field(5, _attribute(name, value))
        self._nodes.append(_field(1, node))

    def constant(self, name: str, value: Array) -> None:
        """float32 or int64."""
        self._constants.setdefault(name, value)

    def write(self, path: Path, inputs: Sequence[bytes], outputs: Sequence[bytes]) -> None:
        """`inputs` and `outputs` are made by `tensor_info`."""
        graph = [*self._nodes, _text(2, path.stem)]
        if sum(value.nbytes for value in self._constants.values()) > MAX_FILE_BYTES:
            with path.with_name(path.name + ".data").open("wb") as file:
                graph += [_field(5, self._tensor(name, file)) for name in self._constants]
        else:
            graph += [_field(5, self._tensor(name, None)) for name in self._constants]
        graph += [_field(11, info) for info in inputs] + [_field(12, info) for info in outputs]
        opset = _field(8, _text(1, "") + _number(2, OPSET))
        size = sum(map(len, graph))
        with path.open("wb") as file:
            file.write(_number(1, IR_VERSION) + _key(7, 2) + _varint(size))
            file.writelines(graph)
            file.write(opset)

    def _tensor(self, name: str, file: Any) -> bytes:
        value = np.ascontiguousarray(self._constants[name])
        kind = INT64 if value.dtype == np.int64 else FLOAT
        head = b"".join(_number(1, size) for size in self._constants[name].shape)
        head += _number(2, kind) + _text(8, name)
        if file is None or value.nbytes < MIN_EXTERNAL_BYTES:
            return head + _field(9, value.tobytes())
        file.write(bytes(-file.tell() % _ALIGNMENT))
        place = {"location": Path(file.name).name, "offset": file.tell(), "length": value.nbytes}
        value.tofile(file)
        for key, text in place.items():
            head += _field(13, _text(1, key) + _text(2, str(text)))
        return head + _number(14, 1)


def tensor_info(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    """A text in the shape is the name of a dimension of any size."""
    dims = b"".join(
        _field(1, _text(2, size) if isinstance(size, str) else _number(1, size)) for size in shape
    )
    return _text(1, name) + _field(2, _field(1, _number(1, kind) + _field(2, dims)))


def _attribute(name: str, value: float | int | list[int]) -> bytes:
    if isinstance(value, float):
        return _text(1, name) + _key(2, 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, 2)
    return _text(1, name) + b"".join(_number(8, one) for one in value) + _number(20, 7)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value & (1 << 64) - 1)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
