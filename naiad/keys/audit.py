"""The audit log: one JSON line for each request that needed a key, whether it was let in or not.

In:  requests that end, and refusals. Out: lines in a file, written by a thread.
Rule: a line never contains a prompt, a tensor or a secret. A full disk or a slow pipe never holds
      up a request: lines that do not fit are dropped and counted.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from naiad.errors import internal
from naiad.log.writer import LogWriter

MAX_QUEUED_BYTES = 16 << 20
MAX_NAME_CHARS = 256


class AuditLine(msgspec.Struct, omit_defaults=True):
    time: str
    """When the request ended."""
    key: str
    """The id of the key; empty if the request had no valid one."""
    address: str
    api: str
    model: str
    """Empty if the request names none, or was refused before its body was read."""
    status: str
    """The status of HTTP, or of gRPC, which is below 100; for a refusal, the name of its reason."""
    prompt_tokens: int
    output_tokens: int
    ms: float
    request_id: str = ""
    """What the client or a proxy sent as X-Request-Id, or the server made."""


class AuditLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._encode = msgspec.json.Encoder().encode
        self._writer = LogWriter(_describe_loss, MAX_QUEUED_BYTES)
        self._descriptor = -1

    def start(self) -> None:
        """Opens the file. Raises NaiadError."""
        if self._descriptor < 0:
            self._descriptor = self._open()

    def reopen(self) -> None:
        """After the file has been moved away: later lines go to a new one. Raises NaiadError, and
        the old file stays in use."""
        new = self._open()
        os.dup2(new, self._descriptor, inheritable=False)
        os.close(new)

    def stop(self) -> None:
        """Blocks until everything is written, or for a second."""
        if self._descriptor >= 0:
            self._writer.flush()
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def num_dropped(self) -> int:
        return self._writer.num_dropped

    def write(self, line: AuditLine) -> None:
        if self._descriptor >= 0:
            line.model = line.model[:MAX_NAME_CHARS]
            self._writer.put(self._descriptor, self._encode(line) + b"\n")

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise internal(
                f"the audit log '{self.path}' cannot be opened: {error.strerror}"
            ) from None
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise internal(f"the audit log '{self.path}' is a directory")
        return descriptor


def now_text(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")


def _describe_loss(count: int) -> bytes:
    return msgspec.json.encode({"dropped": count}) + b"\n"
