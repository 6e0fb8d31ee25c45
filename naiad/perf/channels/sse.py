"""Parses server-sent events from pieces of a body.

Returns the data of each event, in order. Skips comments and other fields.
"""

from __future__ import annotations


class SseReader:
    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> list[bytes]:
        text = self._held + piece if self._held else piece
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        blocks = text.split(b"\n\n")
        self._held = blocks.pop()
        return [data for block in blocks if (data := _data(block)) is not None]

    def finish(self) -> list[bytes]:
        """Returns the last event if no empty line follows it."""
        block, self._held = self._held, b""
        data = _data(block)
        return [] if data is None else [data]


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [
        line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
