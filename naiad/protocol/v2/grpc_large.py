"""The outline of a large ModelInferRequest: what upb may parse, and the rest as spans of it.

In:  the bytes of a message. Out: an Outline: the message without raw tensors and without typed
     contents, the raw tensors as views, the typed contents as they are on the wire.
Rule: fields are counted while they are found, before anything is built from them; upb gets at most
      MAX_REST_BYTES, because it makes a large object of each empty field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.grpc_contents import FIXED_BYTES, LargeContents
from naiad.protocol.v2.grpc_wire import Buffer, WireError, read_varint, varint

MAX_FIELDS: Final = 16_384
"""Inputs, outputs, parameters and raw tensors, each."""
MAX_REST_BYTES: Final = 4 * 1024 * 1024
_MAX_ELEMENTS: Final = 16 * 1024 * 1024
"""Elements of bytes_contents, and numbers that are not packed."""

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 4, 5, 6, 7
_NAMES: Final = {
    _PARAMETERS: "parameters",
    _INPUTS: "inputs",
    _OUTPUTS: "outputs",
    _RAW: "raw_input_contents",
}
_CONTENTS: Final = 5
_BYTES_CONTENTS: Final = 8
_IDENTITY: Final = (1, 2, 3)
_NAMES_OF_SEQUENCE: Final = (1, 2, _PARAMETERS)
_MAX_IDENTITY_FIELDS: Final = 256
"""Clients write the identity first; the event loop looks no further than this."""


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    """Where the field begins, with its tag."""
    content: int
    end: int


def too_many(name: str) -> NaiadError:
    return invalid_arg(f"the request has more than {MAX_FIELDS} {name}")


def identity_fields(message: Buffer) -> bytes:
    """The name, the version and the id, as far as they are among the first fields. Raises
    ValueError or IndexError when the bytes are not a message."""
    parts: list[Buffer] = []
    for count, field in enumerate(_fields(message, 0, len(message))):
        if field.number in _IDENTITY:
            parts.append(message[field.start : field.end])
        if count >= _MAX_IDENTITY_FIELDS:
            break
    return b"".join(parts)


def sequence_fields(message: Buffer) -> bytes:
    """The name, the version and the parameters, as far as the bytes go."""
    parts: list[Buffer] = []
    try:
        for count, field in enumerate(_fields(message, 0, len(message))):
            if field.number in _NAMES_OF_SEQUENCE:
                parts.append(message[field.start : field.end])
            if count >= _MAX_IDENTITY_FIELDS:
                break
    except (WireError, IndexError):
        pass  # a part of a message, or no message
    return b"".join(parts)


def has_few_fields(message: Buffer) -> bool:
    """True if a message has at most MAX_FIELDS fields, so that parsing it makes few objects."""
    try:
        return all(count < MAX_FIELDS for count, _ in enumerate(_fields(message, 0, len(message))))
    except (WireError, IndexError):
        return True  # upb will say what is wrong


class Outline:
    def __init__(self, message: Buffer) -> None:
        """Raises NaiadError."""
        self._message = memoryview(message)
        self._rest: list[Buffer] = []
        self._rest_bytes = 0
        self.raw: list[Buffer] = []
        self.contents: dict[int, LargeContents] = {}
        """Keyed by the number of the input."""
        self._num_inputs = 0
        try:
            self._read()
        except (WireError, IndexError):
            raise internal("Unable to parse request") from None
        self.rest = b"".join(self._rest)

    def _read(self) -> None:
        message = self._message
        counts = dict.fromkeys(_NAMES, 0)
        num_others = 0
        for field in _fields(message, 0, len(message)):
            if field.number in counts and field.kind == _DELIMITED:
                counts[field.number] += 1
                if counts[field.number] > MAX_FIELDS:
                    raise too_many(_NAMES[field.number])
            else:
                num_others += 1
                if num_others > MAX_FIELDS:
                    raise too_many("fields")
            if field.number == _RAW and field.kind == _DELIMITED:
                self.raw.append(message[field.content : field.end])
            elif field.number == _INPUTS and field.kind == _DELIMITED:
                self._read_input(field)
            else:
                self._keep(message[field.start : field.end])

    def _keep(self, part: Buffer) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes > MAX_REST_BYTES:
            raise invalid_arg(
                f"the request has more than {MAX_REST_BYTES} bytes outside of tensor data"
            )
        self._rest.append(part)

    def _read_input(self, tensor: _Field) -> None:
        message = self._message
        parts: list[Buffer] = []
        contents: LargeContents | None = None
        for count, field in enumerate(_fields(message, tensor.content, tensor.end)):
            if count > MAX_FIELDS:
                raise too_many("fields in an input")
            if field.number == _CONTENTS and field.kind == _DELIMITED:
                contents = contents or LargeContents()
                self._read_contents(field, contents)
            else:
                parts.append(message[field.start : field.end])
        size = sum(map(len, parts))
        self._keep(bytes((_INPUTS << 3 | _DELIMITED,)) + varint(size))
        for part in parts:
            self._keep(part)
        if contents is not None:
            self.contents[self._num_inputs] = contents
        self._num_inputs += 1

    def _read_contents(self, contents: _Field, to: LargeContents) -> None:
        message = self._message
        for count, field in enumerate(_fields(message, contents.content, contents.end)):
            if count >= _MAX_ELEMENTS:
                raise invalid_arg(
                    f"the contents of an input have more than {_MAX_ELEMENTS} elements that are "
                    "not packed. Please use raw_input_contents for it"
                )
            part = message[field.content : field.end]
            if field.number == _BYTES_CONTENTS and field.kind == _DELIMITED:
                to.strings += len(part).to_bytes(4, "little")
                to.strings += part
            elif field.kind in _kinds(field.number) and len(part):
                to.add_numbers(field.number, part)


def _kinds(number: int) -> tuple[int, ...]:
    """Numbers may be packed or single; fields that are unknown have no kind."""
    if not 1 <= number < _BYTES_CONTENTS:
        return ()
    size = FIXED_BYTES.get(number)
    single = _VARINT if size is None else _FIXED32 if size == 4 else _FIXED64
    return _DELIMITED, single


def _fields(message: Buffer, offset: int, end: int) -> Iterator[_Field]:
    while offset < end:
        start = offset
        tag, offset = read_varint(message, offset)
        kind = tag & 7
        if tag < 8:
            raise WireError("a field has the number 0")
        content = offset
        if kind == _DELIMITED:
            size, content = read_varint(message, offset)
            offset = content + size
        elif kind == _VARINT:
            _, offset = read_varint(message, offset)
        elif kind == _FIXED32:
            offset += 4
        elif kind == _FIXED64:
            offset += 8
        else:
            raise WireError("a group, which no message has")
        if offset > end:
            raise WireError("a field ends after its message")
        yield _Field(tag >> 3, kind, start, content, offset)
