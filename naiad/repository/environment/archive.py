"""Unpacks a Python environment (conda-pack's tar.gz) into a folder. No member can write outside the
folder.

In:  the archive, and a folder that does not exist yet. Out: the complete folder, or NaiadError and
     no folder.
Rules: this runs in a process of its own (naiad.repository.unpacking). Paths and links that lead
       outside the folder, devices and pipes are refused. Links are created last, so that no file is
       written through a link. Sizes and counts are limited, so that an archive cannot fill the
       disk.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from naiad.errors import NaiadError, invalid_arg
from naiad.repository.tar_members import BZIP2, GZIP, READ_ERRORS, XZ, tar_members

MAX_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
MAX_NAME_CHARS = 1024
MAX_MEMBER_OVERHEAD = 4096
"""What the archive may have around a member, on average."""
BLOCK_BYTES = 1 << 20


def unpack(
    archive: Path,
    folder: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_members: int = MAX_MEMBERS,
) -> None:
    """Blocks."""
    folder.mkdir(mode=0o700)
    try:
        free = shutil.disk_usage(folder).free
        _Unpacking(archive, folder, min(max_bytes, free), max_members).run()
    except READ_ERRORS as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _refused(archive, reason) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _Link(NamedTuple):
    name: str
    target: str
    is_symbolic: bool


class _Unpacking:
    def __init__(self, archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
        self._archive = archive
        self._folder = folder
        self._bytes_left = max_bytes
        self._members_left = max_members

    def run(self) -> None:
        links: list[_Link] = []
        most = self._bytes_left + self._members_left * MAX_MEMBER_OVERHEAD
        for member, source in tar_members(self._archive, [GZIP, BZIP2, XZ], most):
            self._members_left -= 1
            if self._members_left < 0:
                raise ValueError("it has too many members")
            target = self._target(member.name)
            if member.isdir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif member.issym() or member.islnk():
                links.append(_Link(member.name, member.linkname, member.issym()))
            elif source is not None:
                self._write(member, source, target)
            else:
                raise ValueError(f"'{member.name}' is neither a file, a directory nor a link")
        for link in links:
            self._link(link)
        for link in links:
            if link.is_symbolic:
                self._check_end(link.name)

    def _target(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if (
            len(name) > MAX_NAME_CHARS
            or name.startswith("/")
            or ".." in parts
            or "\\" in name
            or "\0" in name
        ):
            raise ValueError(f"'{name[:100]}' is a path outside the folder")
        return self._folder.joinpath(*parts)

    def _write(self, member: tarfile.TarInfo, source: IO[bytes], target: Path) -> None:
        self._bytes_left -= member.size
        if self._bytes_left < 0:
            raise ValueError("it is larger than allowed, or larger than the free disk space")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o700 if member.mode & 0o100 else 0o600
        # As in tar, a second member of the same name replaces the first.
        target.unlink(missing_ok=True)
        descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
        )
        with source, os.fdopen(descriptor, "wb") as file:
            while block := source.read(BLOCK_BYTES):
                file.write(block)

    def _link(self, link: _Link) -> None:
        place = self._target(link.name)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            raise ValueError(f"'{link.name}' is both a directory and a link")
        place.unlink(missing_ok=True)
        if not link.is_symbolic:
            original = self._target(link.target)
            if original.is_symlink() or not original.is_file():
                raise ValueError(
                    f"'{link.name}' is a hard link to something that is no file of the archive"
                )
            os.link(original, place)
            return
        inside = os.path.normpath(os.path.join(os.path.dirname(link.name), link.target))
        if (
            len(link.target) > MAX_NAME_CHARS
            or os.path.isabs(link.target)
            or inside.split("/")[0] == ".."
        ):
            raise ValueError(f"the link '{link.name}' points outside the folder")
        os.symlink(link.target, place)

    def _check_end(self, name: str) -> None:
        """Checks where a link leads when all other links are followed."""
        root = os.path.realpath(self._folder)
        end = os.path.realpath(self._folder / name)
        if end != root and not end.startswith(f"{root}/"):
            raise ValueError(f"the link '{name}' points outside the folder")


def _refused(archive: Path, reason: str) -> NaiadError:
    return invalid_arg(f"the Python environment '{archive.name}' cannot be unpacked: {reason}")
