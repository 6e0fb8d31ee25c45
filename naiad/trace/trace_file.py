"""Writes Triton's trace file: traces as JSON, in one file or in numbered files.

`<file>` is a complete JSON array at any time: each trace is inserted before the closing bracket.
With a log frequency, or when a limited number of traces has been collected, the traces go together
to `<file>.<n>`, with n from 0.
Rule: the event loop only queues traces, and a thread writes them. A full disk loses traces, which
      are counted, and has no other effect.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

from naiad import log
from naiad.core.trace import TraceGroup
from naiad.trace.trace_json import encode_trace
from naiad.trace.trace_setting import ActiveSetting

MAX_QUEUED = 10_000
MAX_BUFFERED_BYTES = 64 << 20
"""A numbered file is written early once its traces are larger than this."""


class _Buffer:
    """Traces of one setting that are not yet written to a numbered file."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.num_bytes = 0

    def add(self, entry: bytes) -> None:
        self.entries.append(entry)
        self.num_bytes += len(entry)


class TraceFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._queue: SimpleQueue[
            tuple[ActiveSetting, TraceGroup | None] | threading.Event | None
        ] = SimpleQueue()
        self._buffers: dict[ActiveSetting, _Buffer] = {}
        self._next_number = 0
        self._has_begun = False
        self._thread: threading.Thread | None = None
        self.num_dropped = 0

    # Called on the event loop.

    def put(self, setting: ActiveSetting, group: TraceGroup) -> None:
        if self._queue.qsize() >= MAX_QUEUED:
            self._drop(1, "they come faster than they can be written")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="naiad-trace", daemon=True)
            self._thread.start()
        self._queue.put((setting, group))

    def retire(self, setting: ActiveSetting) -> None:
        """Writes the buffered traces of a setting that is not used for new traces any more.

        Traces that have not ended yet are written one by one.
        """
        if self._thread is not None:
            self._queue.put((setting, None))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until all earlier traces have been handled. Returns False after the timeout."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes all traces and stops the thread, when the server stops."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    # In the thread.

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            setting, group = item
            try:
                if group is None:
                    self._save_rest(setting)
                else:
                    self._add(setting, encode_trace(group))
            except Exception as error:
                self._drop(1, f"{type(error).__name__}: {error}")
        for setting in list(self._buffers):
            self._save_rest(setting)

    def _add(self, setting: ActiveSetting, entry: bytes) -> None:
        setting.num_collected += 1
        if not setting.log_frequency and setting.count < 0:
            self._append([entry])
            return
        buffer = self._buffers.setdefault(setting, _Buffer())
        buffer.add(entry)
        is_due = setting.log_frequency and len(buffer.entries) >= setting.log_frequency
        if is_due or setting.is_exhausted or buffer.num_bytes > MAX_BUFFERED_BYTES:
            del self._buffers[setting]
            self._save_numbered(buffer.entries)

    def _save_rest(self, setting: ActiveSetting) -> None:
        buffer = self._buffers.pop(setting, None)
        if buffer is None:
            return
        if setting.log_frequency or setting.is_exhausted:
            self._save_numbered(buffer.entries)
        else:
            self._append(buffer.entries)

    def _save_numbered(self, entries: list[bytes]) -> None:
        path = f"{self._path}.{self._next_number}"
        self._next_number += 1
        try:
            with open(path, "wb") as file:
                file.write(b"[" + b",".join(entries) + b"]")
        except OSError as error:
            self._drop(len(entries), error.strerror or str(error))

    def _append(self, entries: list[bytes]) -> None:
        try:
            with open(self._path, "r+b" if self._has_begun else "wb") as file:
                if self._has_begun:
                    file.seek(-1, os.SEEK_END)
                file.write((b"," if self._has_begun else b"[") + b",".join(entries) + b"]")
            self._has_begun = True
        except OSError as error:
            self._has_begun = self._has_begun and os.path.exists(self._path)
            self._drop(len(entries), error.strerror or str(error))

    def _drop(self, count: int, reason: str) -> None:
        """Logs the first and every thousandth loss, so that a full disk does not fill the log."""
        is_first = self.num_dropped == 0
        before = self.num_dropped // 1000
        self.num_dropped += count
        if is_first or self.num_dropped // 1000 != before:
            log.error(f"failed to write the trace file, {self.num_dropped} traces lost: {reason}")
