"""A folder for what is kept between two lives of the server (copies of repositories, Python
environments): ours alone.

Rule: a cache that somebody else could have written to is not used, because what is in it is run.
      Files are replaced, never changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from naiad.errors import NaiadError, internal

PRIVATE = 0o700


def private_folder(path: Path) -> Path:
    """Makes it if it is not there. Raises NaiadError when it is not ours alone."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        status, parent = path.lstat(), path.parent.stat()
    except OSError as error:
        raise internal(f"the cache folder '{path}' cannot be used: {error.strerror}") from error
    if parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX:
        raise _foreign(path, "others may replace it, because they may write to the folder it is in")
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise _foreign(path, "it is not a folder that belongs to this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        try:
            path.chmod(PRIVATE)
        except OSError as error:
            raise _foreign(path, f"others may write to it ({error.strerror})") from error
    return path


def is_trusted_file(path: Path, size: int) -> bool:
    """A plain file of ours that nobody else could have written."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_private = (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o022
    )
    return is_private and status.st_size == size


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Servers that share a cache change it one after the other. Blocks."""
    descriptor = os.open(
        folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """As a whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(
        new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _foreign(path: Path, reason: str) -> NaiadError:
    return internal(f"the cache folder '{path}' is not safe to use: {reason}; choose another one")
