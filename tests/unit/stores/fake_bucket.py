"""A bucket in memory that can fail, interrupt a read, change a file, or report a wrong checksum."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

from naiad.stores.bucket import ChangedError, RemoteFile, StoreError

CHUNK_BYTES = 4


class FakeBucket:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.contents = dict(files)
        self.digests: dict[str, str] = {}
        self.is_down = False
        self.breaks: dict[str, int] = {}
        """path -> how many more reads of it are interrupted in the middle."""
        self.refused: set[str] = set()
        """Paths that cannot be read."""
        self.reads: list[tuple[str, int, int]] = []
        self.num_bytes = 0
        self._lock = threading.Lock()
        self.num_reading = self.max_reading = 0
        self.gate: threading.Barrier | None = None

    def _check(self) -> None:
        if self.is_down:
            raise StoreError("nobody answers")

    def names(self) -> list[str]:
        self._check()
        return sorted({path.partition("/")[0] for path in self.contents if "/" in path})

    def files(self, directory: str) -> list[RemoteFile]:
        self._check()
        found = {
            path: content
            for path, content in self.contents.items()
            if not directory or path.startswith(f"{directory}/")
        }
        return [
            RemoteFile(path, len(content), _tag(content), self.digests.get(path, ""))
            for path, content in found.items()
        ]

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        self._check()
        content = self.contents.get(file.path)
        if file.path in self.refused:
            raise StoreError("not now")
        if content is None or _tag(content) != file.tag:
            raise ChangedError(f"{file.path} has changed")
        with self._lock:
            self.reads.append((file.path, start, end))
            self.num_reading += 1
            self.max_reading = max(self.max_reading, self.num_reading)
        try:
            if self.gate is not None:
                self.gate.wait(60)
            for at in range(start, end, CHUNK_BYTES):
                if at > start and self.breaks.get(file.path, 0):
                    self.breaks[file.path] -= 1
                    raise StoreError("the connection broke")
                chunk = content[at : min(at + CHUNK_BYTES, end)]
                with self._lock:
                    self.num_bytes += len(chunk)
                yield chunk
        finally:
            with self._lock:
                self.num_reading -= 1


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
