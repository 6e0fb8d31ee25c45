"""The bytes of Redis' protocol (RESP2): commands out, replies in. Free of I/O.

Bulk strings, simple strings, errors, integers and null are read; arrays are not asked for. Anything
else raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

MAX_REPLY_BYTES = 512 * 1024 * 1024
"""Redis' own limit for a value."""
_END = b"\r\n"


class RedisError(Exception):
    """An error that the server answered with."""


Reply: TypeAlias = bytes | int | RedisError | None


def encode_command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


class ReplyReader:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0
        """Bytes that must be there before it is worth looking again."""

    def feed(self, data: bytes) -> Iterator[Reply]:
        """Complete replies, in order."""
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
