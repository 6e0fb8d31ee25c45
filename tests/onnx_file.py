"""Writes small ONNX files without the `onnx` package.

It writes just enough of the protobuf wire format for graphs of a few nodes. Field numbers are those
of onnx.proto3. Shapes may contain -1 (a symbolic dimension). Data types are named as in Triton.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TYPES = {
    "FP32": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BYTES": 8,
    "BOOL": 9, "FP16": 10, "FP64": 11, "UINT32": 12, "UINT64": 13, "BF16": 16,
}  # fmt: skip
_NUMPY = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13,
}  # fmt: skip


class Value(NamedTuple):
    name: str
    datatype: str
    shape: Sequence[int | str]


class Node(NamedTuple):
    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: dict[str, int | float | str | list[int]] = {}


class Constant(NamedTuple):
    """An initializer. If `location` is set, its bytes are in a file next to the model, which the
    caller writes."""

    name: str
    array: np.ndarray[Any, Any]
    location: str = ""


def model(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: Sequence[Constant] = (),
    opset: int = 17,
) -> bytes:
    graph = b"".join(
        [
            *(_bytes(1, _node(node)) for node in nodes),
            _bytes(2, b"graph"),
            *(_bytes(5, _tensor(constant)) for constant in constants),
            *(_bytes(11, _value(value)) for value in inputs),
            *(_bytes(12, _value(value)) for value in outputs),
        ]
    )
    return _int(1, 9) + _bytes(7, graph) + _bytes(8, _int(2, opset))


def write(path: Path, *arguments: Any, **keywords: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model(*arguments, **keywords))
    return path


def identity(datatype: str, shape: Sequence[int | str]) -> bytes:
    return model(
        [Node("Identity", ["x"], ["y"])],
        [Value("x", datatype, shape)],
        [Value("y", datatype, shape)],
    )


def _node(node: Node) -> bytes:
    parts = [_bytes(1, name.encode()) for name in node.inputs]
    parts += [_bytes(2, name.encode()) for name in node.outputs]
    parts.append(_bytes(4, node.operator.encode()))
    parts += [_bytes(5, _attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: int | float | str | list[int]) -> bytes:
    head = _bytes(1, name.encode())
    if isinstance(value, float):
        return head + _key(2, 5) + struct.pack("<f", value) + _int(20, 1)
    if isinstance(value, int):
        return head + _int(3, value) + _int(20, 2)
    if isinstance(value, str):
        return head + _bytes(4, value.encode()) + _int(20, 3)
    return head + b"".join(_int(8, number) for number in value) + _int(20, 7)


def _tensor(constant: Constant) -> bytes:
    array = np.ascontiguousarray(constant.array)
    parts = [_int(1, dim) for dim in array.shape]
    parts += [_int(2, _NUMPY[array.dtype.name]), _bytes(8, constant.name.encode())]
    if constant.location:
        external = {"location": constant.location, "offset": "0", "length": str(array.nbytes)}
        for key, value in external.items():
            parts.append(_bytes(13, _bytes(1, key.encode()) + _bytes(2, value.encode())))
        parts.append(_int(14, 1))
    else:
        parts.append(_bytes(9, array.tobytes()))
    return b"".join(parts)


def _value(value: Value) -> bytes:
    dims = b"".join(_bytes(1, _dimension(dim)) for dim in value.shape)
    tensor_type = _int(1, TYPES[value.datatype]) + _bytes(2, dims)
    return _bytes(1, value.name.encode()) + _bytes(2, _bytes(1, tensor_type))


def _dimension(dim: int | str) -> bytes:
    if isinstance(dim, str):
        return _bytes(2, dim.encode())
    return _int(1, dim) if dim >= 0 else b""


def _int(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
