"""Private cache folders, which outlive the server (copies of repositories, Python environments).

Rule: a cache that another user could have written to is not used, because its contents are
      executed. Files are replaced, never modified.
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
    """Creates the folder if it is missing. Raises NaiadError if other users may write to it."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        status, parent = path.lstat(), path.parent.stat()
    except OSError as error:
        raise internal(f"the cache folder '{path}' cannot be used: {error.strerror}") from error
    if parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX:
        raise _unsafe(path, "other users may replace it, because they may write to its parent")
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise _unsafe(path, "it is not a folder that belongs to this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        try:
            path.chmod(PRIVATE)
        except OSError as error:
            raise _unsafe(path, f"other users may write to it ({error.strerror})") from error
    return path


def is_trusted_file(path: Path, size: int) -> bool:
    """Returns True for a regular file of this size that only this user may write."""
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
    """Holds the folder's lock, so that servers that share a cache change it in turn. Blocks."""
    descriptor = os.open(
        folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Replaces the file atomically."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(
        new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _unsafe(path: Path, reason: str) -> NaiadError:
    return internal(f"the cache folder '{path}' is not safe to use: {reason}; choose another one")
