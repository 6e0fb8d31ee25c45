"""Checks an ONNX file without onnxruntime: whether it is whole and its graph fits together.

In:  the path of a model.onnx. Out: what is wrong with it, in a few words; empty if nothing is.
     The file is read as protobuf, by the field numbers of onnx.proto: lengths of nested messages,
     operators, names of tensors, sizes of weights, also of weights in other files.
Rule: the file is mapped, and weights are never read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_DEPTH = 64
"""Graphs inside each other, in the branches of If and Loop."""
_NOT_PROTOBUF = "it does not parse as protobuf"
_ELEMENT_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4,
}  # fmt: skip
"""The size of an element in raw_data, by TensorProto.DataType. Strings have no fixed size."""


class _BrokenError(Exception):
    """The message says what is wrong with the file."""


class _Field(NamedTuple):
    number: int
    wire_type: int
    value: int
    """The value of a varint; otherwise the offset of the first octet."""
    end: int
    """The offset after the last octet."""


def onnx_fault(path: Path) -> str:
    size = path.stat().st_size
    if size == 0:
        return "the file is empty"
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:7] == b"version" and b"git-lfs" in data[:64]:
            return "it is a Git LFS pointer, not the file itself"
        try:
            _check_model(_Message(data, 0, size), path.parent)
        except _BrokenError as fault:
            return str(fault)
    return ""


class _Message:
    """A part of the file that is one message."""

    def __init__(self, data: mmap.mmap, start: int, end: int) -> None:
        self.data = data
        self._start = start
        self._end = end

    def fields(self) -> Iterator[_Field]:
        position, end = self._start, self._end
        while position < end:
            tag, position = self._varint(position)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise _BrokenError(_NOT_PROTOBUF)
            if wire_type == _VARINT:
                value, position = self._varint(position)
                yield _Field(number, wire_type, value, position)
                continue
            if wire_type == _BYTES:
                length, position = self._varint(position)
            elif wire_type in _FIXED_SIZES:
                length = _FIXED_SIZES[wire_type]
            else:
                raise _BrokenError(_NOT_PROTOBUF)
            if position + length > end:
                raise _BrokenError(
                    f"it ends too early: {position + length - end} bytes are missing"
                )
            yield _Field(number, wire_type, position, position + length)
            position += length

    def inner(self, field: _Field) -> _Message:
        if field.wire_type != _BYTES:
            raise _BrokenError(_NOT_PROTOBUF)
        return _Message(self.data, field.value, field.end)

    def text(self, field: _Field) -> str:
        if field.wire_type != _BYTES:
            raise _BrokenError(_NOT_PROTOBUF)
        try:
            return self.data[field.value : field.end].decode()
        except UnicodeDecodeError:
            raise _BrokenError("it has a name that is not text") from None

    def numbers(self, field: _Field) -> list[int]:
        """The values of a repeated integer field, packed or not."""
        if field.wire_type == _VARINT:
            return [field.value]
        packed, values, position = self.inner(field), list[int](), field.value
        while position < field.end:
            value, position = packed._varint(position)
            values.append(value)
        return values

    def _varint(self, position: int) -> tuple[int, int]:
        """The value, and the position after it."""
        value = 0
        for shift in range(0, 70, 7):
            if position >= self._end:
                break
            octet = self.data[position]
            position += 1
            value |= (octet & 0x7F) << shift
            if not octet & 0x80:
                return value, position
        raise _BrokenError(_NOT_PROTOBUF)


def _check_model(model: _Message, directory: Path) -> None:
    graph: _Message | None = None
    has_opset = False
    for field in model.fields():
        if field.number == 7:
            graph = model.inner(field)
        elif field.number == 8:
            has_opset = True
    if graph is None:
        raise _BrokenError("it has no graph")
    _check_graph(graph, frozenset(), directory, 0)
    if not has_opset:
        raise _BrokenError("it does not say which opset it uses")


def _check_graph(graph: _Message, outer: frozenset[str], directory: Path, depth: int) -> None:
    """`outer` are the tensors of the graphs around this one."""
    if depth > _MAX_DEPTH:
        raise _BrokenError(f"more than {_MAX_DEPTH} graphs are inside each other")
    nodes: list[_Message] = []
    known, outputs = set(outer), list[str]()
    for field in graph.fields():
        match field.number:
            case 1:
                nodes.append(graph.inner(field))
            case 5:
                known.add(_check_tensor(graph.inner(field), directory))
            case 11:
                known.add(_name(graph.inner(field), 1))
            case 12:
                outputs.append(_name(graph.inner(field), 1))
            case 15:  # a sparse initializer is named by its values
                known.update(_sparse_names(graph.inner(field)))
    if not outputs:
        raise _BrokenError("its graph has no outputs")
    read: dict[str, str] = {}
    inner_graphs: list[_Message] = []
    for node in nodes:
        operator, inputs, produced = "", list[str](), list[str]()
        for field in node.fields():
            match field.number:
                case 1:
                    inputs.append(node.text(field))
                case 2:
                    produced.append(node.text(field))
                case 4:
                    operator = node.text(field)
                case 5:
                    inner_graphs += _attribute_graphs(node.inner(field), directory)
        if not operator:
            raise _BrokenError("its graph has a node without an operator")
        read.update((name, operator) for name in inputs if name and name not in read)
        known.update(name for name in produced if name)
    for name, operator in read.items():
        if name not in known:
            raise _BrokenError(f"{operator} reads tensor '{name}', which nothing produces")
    for name in outputs:
        if name not in known:
            raise _BrokenError(f"nothing produces its output '{name}'")
    for inner in inner_graphs:
        _check_graph(inner, frozenset(known), directory, depth + 1)


def _name(message: _Message, number: int) -> str:
    names = [message.text(field) for field in message.fields() if field.number == number]
    return names[-1] if names else ""


def _sparse_names(sparse: _Message) -> Iterator[str]:
    for field in sparse.fields():
        if field.number == 1:
            yield _name(sparse.inner(field), 8)


def _attribute_graphs(attribute: _Message, directory: Path) -> Iterator[_Message]:
    """Checks the tensors of an attribute, and returns its graphs."""
    for field in attribute.fields():
        if field.number in (5, 10):
            _check_tensor(attribute.inner(field), directory)
        elif field.number in (6, 11):
            yield attribute.inner(field)


def _check_tensor(tensor: _Message, directory: Path) -> str:
    """Returns the tensor's name."""
    name, data_type, raw_bytes, is_external = "", 0, -1, False
    dims, external = list[int](), dict[str, str]()
    for field in tensor.fields():
        match field.number:
            case 1:
                dims += tensor.numbers(field)
            case 2:
                data_type = field.value
            case 8:
                name = tensor.text(field)
            case 9:
                raw_bytes = field.end - tensor.inner(field)._start
            case 13:
                entry = tensor.inner(field)
                external[_name(entry, 1)] = _name(entry, 2)
            case 14:
                is_external = field.value == 1
    bits = _ELEMENT_BITS.get(data_type, 0)
    expected = (prod(dims) * bits + 7) // 8
    if is_external:
        _check_external(name, external, expected if bits else 0, directory)
    elif raw_bytes >= 0 and bits and raw_bytes != expected:
        raise _BrokenError(f"weight '{name}' has {raw_bytes} bytes, but its shape needs {expected}")
    return name


def _check_external(name: str, entries: dict[str, str], expected: int, directory: Path) -> None:
    location = entries.get("location", "")
    try:
        size = (directory / location).stat().st_size
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or expected)
    except OSError:
        raise _BrokenError(f"weight '{name}' is in '{location}', which is not there") from None
    except ValueError:
        raise _BrokenError(f"weight '{name}' has no valid place in '{location}'") from None
    if length < expected:
        raise _BrokenError(f"weight '{name}' has {length} bytes, but its shape needs {expected}")
    if offset + length > size:
        raise _BrokenError(
            f"weight '{name}' ends at byte {offset + length} of '{location}', which has {size}"
        )
