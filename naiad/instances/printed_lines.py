"""What a worker writes to its stdout and stderr, as records of the server's log.

In:  a pipe, of which the worker holds the other end. Out: one record per line, marked with the name
     of the instance.
Rule: a model that prints without end delays only itself: lines beyond a budget are dropped and
      counted, and the pipe is read less often, so that the model waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from naiad import log

READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 1024
"""A longer line becomes several records."""
BURST_BYTES = 2 << 20
BYTES_PER_S = 256 * 1024
LINE_BYTES = 256
"""A line costs at least this much of the budget."""
PAUSE_S = 0.01
"""The time between two reads of a pipe whose budget is used up."""


class PrintedLines:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        name: str,
        pid: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._name = name
        self._pid = pid
        self._clock_s = clock_s
        self._rest = b""
        self._budget_bytes = float(BURST_BYTES)
        self._refilled_s = clock_s()
        self._num_dropped = 0
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._on_readable)

    def close(self) -> None:
        """The worker is gone: what it has printed is read, and the pipe is closed."""
        if self._fd < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for _ in range(BURST_BYTES // READ_BYTES):  # a child of the worker may go on printing
            if not self._read():
                break
        if self._fd >= 0:
            self._end()

    def _on_readable(self) -> None:
        if self._read() and self._budget_bytes < 0:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._on_readable)

    def _read(self) -> bool:
        """Returns False if nothing was read."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._put(line)
        while len(self._rest) > MAX_LINE_BYTES:
            line, self._rest = self._rest[:MAX_LINE_BYTES], self._rest[MAX_LINE_BYTES:]
            self._put(line)
        return True

    def _put(self, line: bytes) -> None:
        self._budget_bytes -= max(len(line), LINE_BYTES)
        if self._budget_bytes < 0:
            now_s = self._clock_s()
            earned_bytes = (now_s - self._refilled_s) * BYTES_PER_S
            self._refilled_s = now_s
            self._budget_bytes = min(self._budget_bytes + earned_bytes, BURST_BYTES)
            # A debt is never larger than one line, so that a pause ends.
            self._budget_bytes = max(self._budget_bytes, -float(LINE_BYTES))
        if self._budget_bytes < 0:
            self._num_dropped += 1
            return
        self._report_dropped()
        for start in range(0, max(len(line), 1), MAX_LINE_BYTES):
            text = line[start : start + MAX_LINE_BYTES].decode(errors="backslashreplace")
            log.printed(self._name, text.removesuffix("\r"), self._pid)

    def _report_dropped(self) -> None:
        if self._num_dropped:
            log.warning(
                f"{self._num_dropped} lines that '{self._name}' printed were dropped: "
                "it prints too much"
            )
            self._num_dropped = 0

    def _end(self) -> None:
        if self._rest:
            line, self._rest = self._rest, b""
            self._put(line)
        self._report_dropped()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
