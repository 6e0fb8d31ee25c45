"""A region of system shared memory: a POSIX shared memory object (`shm_open`) of the client.

It is accessed with pread and pwrite, which report an object that has been truncated. With a
mapping, a client's ftruncate would cause SIGBUS in the server.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.shm.region import SYSTEM

FOLDER = "/dev/shm"
RESERVED_PREFIX = "triton_python_backend_shm_region_"
MAX_BYTES = (1 << 63) - 1


class SystemRegion:
    kind = SYSTEM
    is_slow = False

    def __init__(self, name: str, key: str, offset: int, byte_size: int, fd: int) -> None:
        """Takes ownership of the descriptor."""
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self._fd = fd

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "key": self.key,
            "offset": self.offset,
            "byte_size": self.byte_size,
        }

    def read(self, offset: int, num_bytes: int) -> bytes:
        try:
            data = os.pread(self._fd, num_bytes, self.offset + offset)
        except OSError as error:
            raise self._lost(error) from error
        if len(data) != num_bytes:
            raise self._shrunk()
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        num_read, end = 0, len(buffer)
        try:
            while num_read < end:
                count = os.preadv(self._fd, [buffer[num_read:]], self.offset + offset + num_read)
                if count == 0:
                    raise self._shrunk()
                num_read += count
        except OSError as error:
            raise self._lost(error) from error

    def write(self, offset: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        start, num_written = self.offset + offset, 0
        try:
            # A write past the end would make the object grow again. If the client truncates it
            # after this check, it grows by no more than what the client had registered.
            if os.fstat(self._fd).st_size < start + len(view):
                raise self._shrunk()
            while num_written < len(view):
                num_written += os.pwrite(self._fd, view[num_written:], start + num_written)
        except OSError as error:
            raise self._lost(error) from error

    def close(self) -> None:
        os.close(self._fd)

    def _shrunk(self) -> NaiadError:
        return invalid_arg(
            f"shared memory region '{self.name}' is smaller now than it was when it was registered"
        )

    def _lost(self, error: OSError) -> NaiadError:
        return internal(f"shared memory region '{self.name}' cannot be used: {error.strerror}")


def check_key(name: str, key: str) -> str:
    """Returns the key without its leading slashes, which have no meaning.

    Raises NaiadError for a key that clients must not use.
    """
    file_name = key.lstrip("/")
    if not file_name:
        raise invalid_arg(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )
    if file_name.startswith(RESERVED_PREFIX):
        raise invalid_arg(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains "
            f"the reserved prefix '{RESERVED_PREFIX}'"
        )
    return file_name


def open_system_region(
    name: str, key: str, offset: int, byte_size: int, folder: str = FOLDER
) -> SystemRegion:
    """Raises NaiadError. As for shm_open, a key may have slashes only at its start."""
    file_name = check_key(name, key)
    if "/" in file_name or "\0" in file_name or file_name in (".", ".."):
        raise _unopenable(key)
    try:
        fd = os.open(
            f"{folder}/{file_name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (OSError, UnicodeEncodeError) as error:
        raise _unopenable(key) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unopenable(key)
        if byte_size <= 0 or offset + byte_size > min(status.st_size, MAX_BYTES):
            raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
        return SystemRegion(name, key, offset, byte_size, fd)
    except BaseException:
        os.close(fd)
        raise


def _unopenable(key: str) -> NaiadError:
    return internal(f"Unable to open shared memory region: '{key}'")
