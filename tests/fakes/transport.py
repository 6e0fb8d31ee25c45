"""A transport without a socket: it keeps what is written and is closed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class FakeTransport(asyncio.Transport):
    def __init__(self, protocol: asyncio.BaseProtocol | None = None) -> None:
        """Closing it tells `protocol` in the next turn of the loop that its connection is lost."""
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.num_writes = 0
        self.unsent_bytes = 0
        self.is_closed = False
        self.is_aborted = False
        self.has_eof = False
        self.is_paused = False

    def take(self) -> bytes:
        """Everything that was written since the last call."""
        written, self.written = bytes(self.written), bytearray()
        return written

    def write(self, data: Any) -> None:
        assert not self.is_closed
        assert not self.has_eof
        self.written += data
        self.num_writes += 1

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.protocol is not None:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
