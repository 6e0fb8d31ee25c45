"""A shared memory object as a client makes it: created, filled, truncated, unlinked behind the
server's back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from naiad.shm.system_region import FOLDER

_numbers = itertools.count()


class SharedObject:
    def __init__(self, content: bytes) -> None:
        self.key = f"/naiad-test-{os.getpid()}-{next(_numbers)}"
        self.path = FOLDER + self.key
        self.write(content)

    def write(self, content: bytes, offset: int = 0) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, content, offset)
        finally:
            os.close(fd)

    def read(self, num_bytes: int, offset: int = 0) -> bytes:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(fd, num_bytes, offset)
        finally:
            os.close(fd)

    def truncate(self, num_bytes: int) -> None:
        os.truncate(self.path, num_bytes)

    def num_descriptors(self) -> int:
        """Of this process, on this object. Others may come and go meanwhile."""
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found += os.readlink(f"/proc/self/fd/{name}") == self.path
        return found


@contextmanager
def shared_object(content: bytes = bytes(4096)) -> Iterator[SharedObject]:
    made = SharedObject(content)
    try:
        yield made
    finally:
        os.unlink(made.path)
