"""The bytes of Redis' protocol (RESP2): commands out, replies in. There is no I/O here.

Bulk strings, simple strings, errors, integers and null are read. No command that is used here
returns an array, so an array raises ValueError, as anything else does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

MAX_REPLY_BYTES = 512 * 1024 * 1024
"""The limit that Redis itself has for a value."""
_END = b"\r\n"


class RedisError(Exception):
    """An error that Redis returned."""


Reply: TypeAlias = bytes | int | RedisError | None


def encode_command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


class ReplyReader:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0
        """The number of bytes that the next reply needs, as far as that is known."""

    def feed(self, data: bytes) -> Iterator[Reply]:
        """Yields complete replies, in order."""
        self._buffer += data
        while len(self._buffer) >= self._needed:
            end = self._buffer.find(_END)
            if end < 0:
                if len(self._buffer) > MAX_REPLY_BYTES:
                    raise ValueError("a reply without an end")
                return
            kind, line = self._buffer[:1], bytes(self._buffer[1:end])
            if kind == b"$":
                size = _number(line)
                if size > MAX_REPLY_BYTES:
                    raise ValueError(f"a reply of {size} bytes")
                total = end + 2 if size < 0 else end + 2 + size + 2
                if len(self._buffer) < total:
                    self._needed = total
                    return
                reply: Reply = None if size < 0 else bytes(self._buffer[end + 2 : total - 2])
            else:
                total = end + 2
                reply = _simple(bytes(kind), line)
            del self._buffer[:total]
            self._needed = 0
            yield reply


def _simple(kind: bytes, line: bytes) -> Reply:
    match kind:
        case b"+":
            return line
        case b"-":
            return RedisError(line.decode(errors="replace"))
        case b":":
            return _number(line)
    raise ValueError(f"a reply of unknown kind {kind!r}")


def _number(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:
        raise ValueError(f"{line[:20]!r} is not a number") from None
