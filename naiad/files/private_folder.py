"""Private cache folders, which outlive the server (copies of repositories, Python environments).

Rule: a cache that another user could have written to is not used, because its contents are
      executed. Files are replaced, never modified.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
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
    if _is_volume(path, status):
        return path
    if _others_may_write(path.parent, parent) and not parent.st_mode & stat.S_ISVTX:
        raise _unsafe(path, "other users may replace it, because they may write to its parent")
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise _unsafe(path, "it is not a folder that belongs to this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        try:
            path.chmod(PRIVATE)
        except OSError as error:
            raise _unsafe(path, f"other users may write to it ({error.strerror})") from error
    return path


def _others_may_write(path: Path, status: os.stat_result) -> bool:
    if not status.st_mode & 0o022 or _is_volume(path, status):
        return False
    return bool(status.st_mode & 0o002) or not _is_own_group(status.st_gid)


def _is_volume(path: Path, status: os.stat_result) -> bool:
    """A volume that a pod has mounted for its fsGroup: of root and of a group of our own, which its
    files inherit, and with mode 2775 or 2777. Only the pod sees it."""
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == 0
        and status.st_mode & 0o2770 == 0o2770
        and os.path.ismount(path)
        and _is_own_group(status.st_gid)
    )


def _is_own_group(gid: int) -> bool:
    """Whether this process has the group, and no other user of this machine does."""
    if gid not in (os.getegid(), *os.getgroups()):
        return False
    own = {user.pw_name for user in pwd.getpwall() if user.pw_uid == os.geteuid()}
    primary = {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    members = {name for group in grp.getgrall() if group.gr_gid == gid for name in group.gr_mem}
    return primary | members <= own


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
    return internal(
        f"the cache folder '{path}' is not safe to use: {reason}; choose a folder inside one that "
        "belongs to this user and has mode 700"
    )
