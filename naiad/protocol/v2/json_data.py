"""Packs large tensor data that is written as JSON, in pieces: a span of the text -> bytes.

In:  the text and the place of a list in it. Out: the bytes of the tensor, as json_tensor.py would
     pack them, or NaiadError with Triton's messages.
Rule: a piece is read typed and packed at once, so that memory stays near the size of the tensor; no
      step holds the interpreter lock for longer than a piece takes. Text that only the slow reader
      understands is bounded.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.tensor import Allocate, Buffer
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_access import mismatch, parse_error
from naiad.protocol.v2.json_split import SLICE_BYTES, Span, Split
from naiad.protocol.v2.json_string_mask import StringMask
from naiad.protocol.v2.json_tensor import (
    check_count,
    check_depth,
    check_packable,
    check_types,
    element_decoder,
    number_format,
    pack_numbers,
    text_bytes,
)
from naiad.protocol.v2.triton_json import scan_error, syntax_error
from naiad.protocol.v2.triton_json_scan import JsonSyntaxError, Scanner

_MAX_SLOW_BYTES: Final = 1024 * 1024
_SLOW_SLICE_BYTES: Final = 16 * 1024
_MAX_NUMBER_BYTES: Final = 64 * 1024
"""A number with the blanks and brackets around it."""
_COMMA, _OPEN, _CLOSE, _SPACE, _QUOTE = b',[] "'
_IS_BRACKET = np.zeros(256, np.bool_)
_IS_BRACKET[[_OPEN, _CLOSE]] = True
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[[0x20, 0x09, 0x0A, 0x0D]] = True
_EMPTY_LIST = re.compile(rb"\[[ \t\r\n]*\]")
_BLANK = b" \t\r\n"
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPED_TEXT = re.compile(
    rb"(?:[^\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[0-9a-fA-F]{4}|\\[^u])*"
)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_ANY = msgspec.json.Decoder()
_STRING = msgspec.json.Decoder(str)


class LargeData(msgspec.Struct, frozen=True):
    """The long `data` of a request, for which marks stand in the rest of its text."""

    text: Buffer
    split: Split
    allocate: Allocate | None = None

    def pack(self, data: list[Any], datatype: str, count: int, name: str) -> Buffer | None:
        """`data` is parsed. Returns None when it is not a mark. Raises NaiadError."""
        span = self.split.span(data)
        return None if span is None else self.pack_span(span, datatype, count, name)

    def pack_span(self, span: Span, datatype: str, count: int, name: str) -> Buffer:
        """Raises NaiadError."""
        return pack_span(self.text, span, datatype, count, name, self.allocate)


def pack_span(
    text: Buffer,
    span: Span,
    datatype: str,
    count: int,
    name: str,
    allocate: Allocate | None = None,
) -> Buffer:
    """Packs `count` values; the caller has checked that they are not too many bytes. The number of
    strings is not checked. Raises NaiadError."""
    check_packable(datatype, name)
    check_depth(span.depth)
    reader = _Reader(text, span, datatype, name)
    if datatype == "BYTES":
        packed = bytearray()
        for strings in reader.strings():
            packed += strings
        return packed
    num_bytes = count * DATATYPES[datatype].byte_size
    if count > (span.end - span.start) // 2:  # no memory for values that cannot be there
        for _ in reader.numbers(count):
            pass
        check_count(reader.num_values, count, name)
    memory = None if allocate is None else allocate(num_bytes)
    if memory is None:
        memory = np.empty(num_bytes, np.uint8).data
    tensor, filled = np.frombuffer(memory, DATATYPES[datatype].numpy, count), 0
    for numbers in reader.numbers(count):
        tensor[filled : filled + len(numbers)] = numbers
        filled += len(numbers)
    check_count(reader.num_values, count, name)
    return memory[:num_bytes]


class _Piece(msgspec.Struct, frozen=True):
    """Whole elements, separated by commas."""

    offset: int
    end: int
    text: bytes
    """Empty for a single element that is longer than any piece."""
    flat: bytes | None
    """The text with spaces for the brackets of nested lists. None when the brackets are where no
    bracket may be."""


class _Reader:
    def __init__(self, text: Buffer, span: Span, datatype: str, name: str) -> None:
        self._text = memoryview(text)
        self._start, self._end = span.start + 1, span.end - 1
        self._datatype = datatype
        self._name = name
        self._slow_bytes = 0
        self.num_values = 0
        """The numbers that have been read so far."""

    def numbers(self, count: int) -> Iterator[np.ndarray[Any, Any]]:
        """Yields at most `count` numbers. Values after them are only counted, in `num_values`."""
        decode = element_decoder(self._datatype)
        format, dtype = number_format(self._datatype), DATATYPES[self._datatype].numpy
        for piece in self._pieces():
            left = max(0, count - self.num_values)
            if piece.flat is not None:
                try:
                    values = decode(b"[%b]" % piece.flat)
                    packed = bytes(values) if format == "?" else array(format, values)
                except (msgspec.MsgspecError, OverflowError, ValueError):
                    pass
                else:
                    self.num_values += len(values)
                    yield np.frombuffer(packed, dtype)[:left]
                    continue
            for values in self._values(piece):
                left = max(0, count - self.num_values)
                self.num_values += len(values)
                check_types(values[:left], self._datatype)
                yield np.frombuffer(pack_numbers(values[:left], self._datatype), dtype)

    def strings(self) -> Iterator[bytes]:
        decode = element_decoder("BYTES")
        for piece in self._pieces():
            if piece.end - piece.offset > 2 * SLICE_BYTES:
                yield from self._long_string(piece.offset, piece.end)
                continue
            if piece.flat is not None:
                try:
                    packed = encode_byte_strings(decode(b"[%b]" % piece.flat))
                except (msgspec.MsgspecError, UnicodeError):
                    pass
                else:
                    yield packed
                    continue
            for values in self._values(piece):
                if not all(isinstance(value, str) for value in values):
                    raise internal(f"Unable to parse JSON bytes array: {mismatch('string')}")
                yield encode_byte_strings(text_bytes(value) for value in values)

    def _pieces(self) -> Iterator[_Piece]:
        """Cuts the list at commas outside of strings."""
        text, start, end = self._text, self._start, self._end
        octets = np.frombuffer(text, np.uint8)
        mask = StringMask()
        pending = start
        """Where the piece begins; the text before `position` is known to contain no comma."""
        position = start
        while position < end:
            stop = min(position + SLICE_BYTES, end)
            outside = mask.outside(octets[position:stop])
            commas = octets[position:stop] == _COMMA
            if outside is not None:
                commas &= outside
            places = np.flatnonzero(commas)
            if len(places) and pending < position:
                # An element that began in an earlier slice is a piece of its own.
                cut = position + int(places[0])
                yield self._piece(pending, cut)
                pending = cut + 1
                places = places[1:]
            if len(places):
                cut = position + int(places[-1])
                yield self._piece(pending, cut)
                pending = cut + 1
            elif position - pending > _MAX_NUMBER_BYTES and self._datatype != "BYTES":
                raise syntax_error("Invalid value.", position)
            position = stop
        is_long = end - start > _MAX_NUMBER_BYTES
        if pending > start or is_long or bytes(text[start:end]).strip(_BLANK):
            yield self._piece(pending, end)

    def _piece(self, start: int, end: int) -> _Piece:
        if end - start > 2 * SLICE_BYTES and self._datatype == "BYTES":
            return _Piece(start, end, b"", None)
        text = bytes(self._text[start:end])
        octets = np.frombuffer(text, np.uint8)
        if b"[" not in text and b"]" not in text:
            return self._checked(_Piece(start, end, text, text))
        brackets = _IS_BRACKET[octets]
        outside = StringMask().outside(octets)
        if outside is not None:
            brackets &= outside
        if not _are_brackets_placed(octets, outside):
            return _Piece(start, end, text, None)
        flat = octets.copy()
        flat[brackets] = _SPACE
        return self._checked(_Piece(start, end, text, flat.tobytes()))

    def _checked(self, piece: _Piece) -> _Piece:
        """A piece without a value must be an empty list, not the place after a comma."""
        assert piece.flat is not None
        if not piece.flat.strip(_BLANK) and _EMPTY_LIST.search(piece.text) is None:
            raise syntax_error("Invalid value.", piece.offset)
        return piece

    # What the typed decoder does not understand.

    def _values(self, piece: _Piece) -> Iterator[list[Any]]:
        if piece.flat is None:
            raise syntax_error("Invalid value.", piece.offset)
        try:
            yield _ANY.decode(b"[%b]" % piece.flat)
            return
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        self._slow_bytes += len(piece.text)
        if self._slow_bytes > _MAX_SLOW_BYTES:
            raise invalid_arg(
                f"JSON input '{self._name}' has more than {_MAX_SLOW_BYTES} bytes of data with "
                "empty lists or values that are not plain JSON. "
                "Please use the binary data format for it"
            )
        yield from self._slow_values(piece)

    def _slow_values(self, piece: _Piece) -> Iterator[list[Any]]:
        values: list[Any] = []
        start = 0
        for end in [*_commas(piece.text), len(piece.text)]:
            element, offset = piece.text[start:end], piece.offset + start
            start = end + 1
            if _EMPTY_LIST.search(element) and not element.strip(_BLANK + b"[]"):
                continue
            values.append(self._element(element, offset))
            if len(values) >= _SLOW_SLICE_BYTES:
                yield values
                values = []
        yield values

    def _element(self, element: bytes, offset: int) -> Any:
        bare = element.strip(_BLANK + b"[]")
        offset += element.find(bare)
        if bare[:1] == b"{":
            raise _wrong_type(self._datatype)
        try:
            return Scanner(bare.decode("utf-8", "surrogateescape")).document()
        except JsonSyntaxError as fault:
            raise scan_error(fault, offset + fault.offset) from None

    def _long_string(self, start: int, end: int) -> Iterator[bytes]:
        """Reads one string that is longer than a piece. Only its content is copied, and no Python
        string is made of it as a whole."""
        first = bytes(self._text[start : start + SLICE_BYTES])
        last = bytes(self._text[end - SLICE_BYTES : end])
        start += len(first) - len(first.lstrip(_BLANK + b"["))
        end -= len(last) - len(last.rstrip(_BLANK + b"]"))
        if self._text[start] != _QUOTE or self._text[end - 1] != _QUOTE:
            raise syntax_error("Invalid value.", start)
        parts: list[bytes] = []
        start, end = start + 1, end - 1
        while start < end:
            part = bytes(self._text[start : min(end, start + SLICE_BYTES)])
            if (control := _CONTROL.search(part)) is not None:
                raise syntax_error("Invalid escape character in string.", start + control.start())
            if b"\\" in part:
                window = bytes(self._text[start : min(end, start + _SLOW_SLICE_BYTES)])
                part = _whole_escapes(window)
                parts.append(_unescape(part, start))
            else:
                parts.append(part)
            start += len(part)
        num_bytes = sum(map(len, parts))
        yield num_bytes.to_bytes(4, "little")
        yield from parts


def _whole_escapes(part: bytes) -> bytes:
    """The beginning of a string's content that ends neither inside an escape nor between the two
    halves of a pair; all of it when it does not begin with a whole escape."""
    match = _ESCAPED_TEXT.match(part)
    whole = b"" if match is None else match[0]
    return _HIGH_SURROGATE.sub(b"", whole) or whole or part


def _unescape(part: bytes, offset: int) -> bytes:
    text = b'"%b"' % part
    try:
        return _STRING.decode(text).encode()
    except (msgspec.MsgspecError, UnicodeError):
        pass
    try:
        return text_bytes(Scanner(text.decode("utf-8", "surrogateescape")).document())
    except JsonSyntaxError as fault:
        raise scan_error(fault, offset + max(0, fault.offset - 1)) from None


def _commas(text: bytes) -> list[int]:
    octets = np.frombuffer(text, np.uint8)
    outside = StringMask().outside(octets)
    commas = octets == _COMMA
    if outside is not None:
        commas &= outside
    places: list[int] = np.flatnonzero(commas).tolist()
    return places


def _are_brackets_placed(octets: Any, outside: Any) -> bool:
    """True when every opening bracket follows a bracket or a comma, and every closing bracket
    precedes one: a value next to a bracket without a comma is not JSON."""
    seen = ~_IS_BLANK[octets]
    if outside is not None:
        seen &= outside
    visible = octets[seen]
    opens = np.flatnonzero(visible == _OPEN)
    closes = np.flatnonzero(visible == _CLOSE)
    before = visible[opens[opens > 0] - 1]
    after = visible[closes[closes < len(visible) - 1] + 1]
    return bool(
        np.all((before == _OPEN) | (before == _COMMA))
        and np.all((after == _CLOSE) | (after == _COMMA))
    )


def _wrong_type(datatype: str) -> NaiadError:
    if datatype == "BYTES":
        return internal(f"Unable to parse JSON bytes array: {mismatch('string')}")
    kinds = {"B": "boolean", "F": "number", "U": "unsigned-integer", "I": "signed-integer"}
    return parse_error("data", mismatch(kinds[datatype[0]]))
