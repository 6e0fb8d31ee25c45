"""Splits the JSON of a large inference request: the `data` of its tensors, and the rest.

In:  the text of a request. Out: a Split: the text with a mark in place of each long `data`, and
     where these are. The rest is small, so the ordinary decoders read it; json_data.py packs the
     data.
Rule: everything happens in slices, so that a thread which does this never holds the interpreter
      lock for long, and nothing is built before its size is known to be within the limits.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.protocol.v2.json_string_mask import StringMask
from naiad.protocol.v2.triton_json import MAX_DEEP_BYTES, MAX_KEPT_DEPTH, parse, syntax_error

Places: TypeAlias = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
Octets: TypeAlias = np.ndarray[Any, Any]
Depths: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

SLICE_BYTES: Final = 128 * 1024
MAX_REST_BYTES: Final = 4 * 1024 * 1024
"""The default of --http-max-json-size."""
MAX_REST_VALUES: Final = 65_536
"""Values outside of tensor data. Plain Python objects take up to 30 times the bytes of their
text."""

_MIN_DATA_BYTES: Final = 4096
_DATA_DEPTH: Final = 4
"""{"inputs": [{"data": [: the list is the fourth bracket."""
_FLAT_DEPTH: Final = 2
"""{"image": [: the list is the second bracket."""
_DATA_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\Z')
_KEY_BYTES: Final = 256

_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_IS_INK = np.ones(256, np.bool_)
_IS_INK[[0x20, 0x09, 0x0A, 0x0D]] = False
_IS_START = np.zeros(256, np.bool_)
_IS_START[[ord("["), ord("{"), ord(",")]] = True


class Span(msgspec.Struct, frozen=True):
    """The place of a list in the text, brackets included."""

    start: int
    end: int
    depth: int = 1
    """The most lists around a value, this one included."""


class Split(msgspec.Struct, frozen=True):
    rest: bytes
    nonce: str
    """What marks begin with. The client cannot guess it, so it cannot write a mark."""
    spans: list[Span]
    starts: list[int]
    """For each part of `rest`, its place in the text..."""
    offsets: list[int]
    """...and its place in `rest`."""

    def span(self, data: list[Any]) -> Span | None:
        """The place of the data that a mark stands for. None when it is not a mark."""
        if len(data) != 1 or not isinstance(data[0], str):
            return None
        start, _, number = data[0].partition(":")
        return self.spans[int(number)] if start == self.nonce else None

    def locate(self, offset: int) -> int:
        """The place in the text of an offset in `rest`."""
        part = max(0, int(np.searchsorted(self.offsets, offset, "right")) - 1)
        return self.starts[part] + offset - self.offsets[part]


def split_data(text: Buffer, max_rest_bytes: int = MAX_REST_BYTES) -> Split:
    """Raises NaiadError when what is not tensor data is too large, and for brackets that do not
    match."""
    return _Splitter(text, max_rest_bytes, _DATA_DEPTH, _DATA_KEY).run()


def split_flat(text: Buffer, names: Iterable[str], max_rest_bytes: int) -> Split:
    """Splits a flat object, whose tensor data are the lists under `names`. Raises NaiadError."""
    keys = b"|".join(re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in names)
    key = re.compile(b"(?:%b)[ \\t\\r\\n]*:[ \\t\\r\\n]*\\Z" % keys)
    return _Splitter(text, max_rest_bytes, _FLAT_DEPTH, key).run()


def check_size(text: Buffer, max_bytes: int = MAX_REST_BYTES, max_depth: int | None = None) -> None:
    """Raises NaiadError unless a body without tensor data is within the limits. Values deeper than
    `max_depth` do not count, because the caller will not build them."""
    if len(text) > max_bytes:
        raise _too_large(max_bytes)
    mask, octets = StringMask(), np.frombuffer(text, np.uint8)
    num_values = depth = 0
    for start in range(0, len(octets), SLICE_BYTES):
        part = octets[start : start + SLICE_BYTES]
        outside = mask.outside(part)
        starts = _IS_START[part]
        if outside is not None:
            starts &= outside
        if max_depth is not None:
            depths = _depths(part, outside, depth)
            depth = int(depths[-1])
            starts &= depths <= max_depth
        num_values += int(np.count_nonzero(starts))
        if num_values > MAX_REST_VALUES:
            raise invalid_arg(
                f"the request has more than {MAX_REST_VALUES} JSON values outside of tensor data"
            )


def parse_large(text: Buffer, max_bytes: int = MAX_REST_BYTES) -> Any:
    """Parses a body without tensor data. Raises NaiadError."""
    _check_parsed(text, max_bytes)
    return parse(text)


def _check_parsed(text: Buffer, max_bytes: int) -> None:
    """`parse` cuts what is nested too deeply, unless the body is large."""
    check_size(text, max_bytes, MAX_KEPT_DEPTH if len(text) <= MAX_DEEP_BYTES else None)


def _depths(part: Octets, outside: Octets | None, depth: int) -> Depths:
    """The number of brackets that are open after each octet, if `depth` were open before."""
    steps = _STEPS[part]
    if outside is not None:
        steps *= outside
    depths = np.cumsum(steps, dtype=np.int32)
    depths += depth
    return depths


def _too_large(max_bytes: int) -> NaiadError:
    return invalid_arg(
        f"the JSON of the request has more than {max_bytes} bytes outside of tensor data. "
        "Use --http-max-json-size to increase the limit."
    )


class _Splitter:
    def __init__(
        self, text: Buffer, max_rest_bytes: int, depth: int, key: re.Pattern[bytes]
    ) -> None:
        """`depth` is that of a list of tensor data, `key` what stands before it."""
        self._depth = depth
        self._key = key
        self._text = memoryview(text)
        self._max_rest_bytes = max_rest_bytes
        self._nonce = secrets.token_hex(16)
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        self._offsets: list[int] = []
        self._rest_bytes = 0
        self._spans: list[Span] = []
        self._kept_from = 0
        """Where the text begins that is not in `_parts` yet."""
        self._open = -1
        """Where a value began, at the depth of tensor data, that has not ended yet; else -1."""
        self._is_open_data = False
        self._open_depth = 0
        """The greatest depth of that value so far."""

    def run(self) -> Split:
        text, octets = self._text, np.frombuffer(self._text, np.uint8)
        mask, depth = StringMask(), 0
        for start in range(0, len(octets), SLICE_BYTES):
            part = octets[start : start + SLICE_BYTES]
            outside = mask.outside(part)
            depths = _depths(part, outside, depth)
            steps = np.diff(depths, prepend=np.int32(depth))
            depth = int(depths[-1])
            if depths.min() < 0:
                raise syntax_error(
                    "The document root must not be followed by other values.",
                    start + int(np.argmax(depths < 0)),
                )
            opens = np.flatnonzero((depths == self._depth) & (steps == 1))
            closes = np.flatnonzero((depths == self._depth - 1) & (steps == -1))
            self._find_spans(start, opens, closes, depths)
            if self._open < 0 and not _IS_INK[part].any() and not mask.is_inside:
                # A slice of blanks is left out, all but one, so that none of them counts.
                self._keep(start + 1)
                self._kept_from = start + len(part)
            kept_to = self._open if self._is_open_data else start + len(part)
            if self._rest_bytes + kept_to - self._kept_from > self._max_rest_bytes:
                raise _too_large(self._max_rest_bytes)
        if mask.is_inside:
            raise syntax_error("Missing a closing quotation mark in string.", len(text))
        if depth:
            raise syntax_error("Missing a comma or ']' after an array element.", len(text))
        self._keep(len(text))
        rest = b"".join(self._parts)
        _check_parsed(rest, self._max_rest_bytes)
        return Split(rest, self._nonce, self._spans, self._starts, self._offsets)

    def _find_spans(self, start: int, opens: Places, closes: Places, depths: Depths) -> None:
        """`opens` and `closes` are the offsets, from `start`, of the brackets that begin and end
        values at the depth of tensor data. They alternate."""
        begins = opens + start
        ends = closes + start
        if self._open >= 0:
            inside = depths[: int(closes[0])] if len(closes) else depths
            self._open_depth = max(self._open_depth, int(inside.max(initial=0)))
            if not len(ends):
                return
            self._cut(self._open, int(ends[0]) + 1, self._open_depth)
            ends, closes = ends[1:], closes[1:]
        self._open = -1
        if len(begins) > len(ends):
            self._open = int(begins[-1])
            self._open_depth = int(depths[int(opens[-1]) :].max())
        begins = begins[: len(ends)]
        for index in np.flatnonzero(ends - begins > _MIN_DATA_BYTES).tolist():
            depth = int(depths[int(opens[index]) : int(closes[index])].max())
            self._cut(int(begins[index]), int(ends[index]) + 1, depth)
        self._is_open_data = self._open >= 0 and self._is_data(self._open)

    def _is_data(self, start: int) -> bool:
        before = bytes(self._text[max(0, start - _KEY_BYTES) : start])
        return self._text[start] == 0x5B and self._key.search(before) is not None

    def _cut(self, start: int, end: int, depth: int) -> None:
        is_list = self._text[end - 1] == 0x5D and self._is_data(start)
        if end - start <= _MIN_DATA_BYTES or not is_list:
            return
        self._keep(start)
        self._parts.append(b'["%b:%d"]' % (self._nonce.encode(), len(self._spans)))
        self._rest_bytes += len(self._parts[-1])
        self._spans.append(Span(start, end, depth - self._depth + 1))
        self._kept_from = end

    def _keep(self, end: int) -> None:
        self._starts.append(self._kept_from)
        self._offsets.append(self._rest_bytes)
        self._parts.append(bytes(self._text[self._kept_from : end]))
        self._rest_bytes += end - self._kept_from
