"""A shared memory object of a client, which creates, fills, truncates and unlinks it."""

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
        """Returns how many descriptors this process has open on this object.

        Other threads may open and close other descriptors in the meantime.
        """
        count = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                count += os.readlink(f"/proc/self/fd/{name}") == self.path
        return count


@contextmanager
def shared_object(content: bytes = bytes(4096)) -> Iterator[SharedObject]:
    made = SharedObject(content)
    try:
        yield made
    finally:
        os.unlink(made.path)
