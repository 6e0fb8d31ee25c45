"""The thread that writes log lines.

A stalled terminal, a slow disk or a closed pipe must never block the server.
In:  finished lines, each with its descriptor. Out: write(2).
Rule: `put` never waits for a descriptor. Lines beyond the memory limit are dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

MAX_QUEUED_BYTES = 8 << 20
MAX_BATCH_LINES = 256
STALL_LIMIT_MS = 5000
STDERR = 2


class LogWriter:
    def __init__(
        self, describe_loss: Callable[[int], bytes], max_queued_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        self._describe_loss = describe_loss
        self._max_queued_bytes = max_queued_bytes
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._queue: SimpleQueue[tuple[int, bytes] | threading.Event] = SimpleQueue()
        self._queued_bytes = 0
        self._unreported = 0
        self.num_dropped = 0
        self._failing: set[int] = set()
        """Descriptors whose last write failed."""
        self._pid = 0

    def put(self, descriptor: int, line: bytes) -> None:
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            if self._queued_bytes + len(line) > self._max_queued_bytes:
                self.num_dropped += 1
                self._unreported += 1
                return
            self._queued_bytes += len(line)
        self._queue.put((descriptor, line))

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Waits until all earlier lines have been written. Returns False after the timeout."""
        if self._pid != os.getpid():
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def _start(self) -> None:
        """Starts the thread on the first line, and again in a forked child.

        The child does not inherit the thread, and the lock may have been held during the fork.
        """
        if self._pid != 0:
            self._lock = threading.Lock()
            self._reset()
        with self._lock:
            if self._pid == 0:
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="naiad-log", daemon=True).start()
                atexit.register(self.flush)

    def _run(self) -> None:
        while True:
            entry = self._queue.get()
            lines: list[tuple[int, bytes]] = []
            while not isinstance(entry, threading.Event):
                lines.append(entry)
                try:
                    if len(lines) == MAX_BATCH_LINES:
                        break
                    entry = self._queue.get_nowait()
                except Empty:
                    break
            self._write_all(lines)
            if isinstance(entry, threading.Event):
                entry.set()

    def _write_all(self, lines: list[tuple[int, bytes]]) -> None:
        pending, target = b"", -1
        for descriptor, line in lines:
            if descriptor != target and pending:
                self._write(target, pending)
                pending = b""
            pending, target = pending + line, descriptor
        if pending:
            self._write(target, pending)
        with self._lock:
            self._queued_bytes -= sum(len(line) for _, line in lines)
            lost = self._unreported if self._queue.empty() else 0
            self._unreported -= lost
        if lost and target >= 0:
            self._write(target, self._describe_loss(lost))

    def _write(self, descriptor: int, data: bytes) -> None:
        """Counts the lines as dropped if the reader is gone, the disk is full or the descriptor is
        closed. The next write is tried again."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(descriptor, view) :]
                except BlockingIOError:
                    poll = select.poll()
                    poll.register(descriptor, select.POLLOUT)
                    if not poll.poll(STALL_LIMIT_MS):
                        raise
        except OSError as error:
            with self._lock:
                self.num_dropped += data.count(b"\n")
            self._complain(descriptor, error)
        else:
            self._failing.discard(descriptor)

    def _complain(self, descriptor: int, error: OSError) -> None:
        """On the standard error, once until a write succeeds again: a file that takes nothing
        would hide every later line, too."""
        if descriptor in self._failing or descriptor <= STDERR:
            return
        self._failing.add(descriptor)
        reason = error.strerror or type(error).__name__
        line = f"the log file cannot be written: {reason}; lines are lost until it can\n"
        with contextlib.suppress(OSError):
            os.write(STDERR, line.encode())
