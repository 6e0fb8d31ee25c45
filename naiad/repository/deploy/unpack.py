"""Unpacks an uploaded zip or tar archive into a folder.

In:  the archive, and a folder that does not exist yet. Out: the complete folder, or NaiadError and
     no folder.
Rules: this runs in a process of its own (naiad.repository.unpacking). Only files and folders; no
       links, no devices, no path that leads out, no name twice. What is written is counted while it
       is written, because the sizes that an archive declares may be lies: an archive that grows too
       much is a bomb.
"""

from __future__ import annotations

import errno
import shutil
import stat
import zipfile
import zlib
from pathlib import Path
from typing import IO

from naiad.errors import Code, NaiadError, invalid_arg
from naiad.repository.deploy.upload_check import check_path
from naiad.repository.tar_members import GZIP, READ_ERRORS, tar_members

MAX_MEMBERS = 20_000
MAX_RATIO = 200
"""Weights shrink by a factor of two or so. Only made-up data shrinks more than this."""
FREE_RATIO_BYTES = 64 << 20
"""An archive may always grow to this size, because small files of text shrink well."""
BLOCK_BYTES = 1 << 20
MAX_MEMBER_OVERHEAD = 4096
"""What a tar archive may have around a member, on average."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def unpack_upload(archive: Path, folder: Path, shown: str, max_bytes: int) -> None:
    """Blocks. Raises NaiadError."""
    limit = _Limit(shown, archive.stat().st_size, max_bytes)
    folder.mkdir(mode=0o700, parents=True)
    try:
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, folder, limit)
        else:
            _unpack_tar(archive, folder, limit)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise system_fault(error, f"'{shown}' cannot be unpacked") from error
        if isinstance(error, (zipfile.BadZipFile, zlib.error, *READ_ERRORS)):
            raise _refused(shown, f"it cannot be read: {error}") from error
        if isinstance(error, (NotImplementedError, RuntimeError)):
            raise _refused(shown, str(error)) from error
        raise


def system_fault(error: OSError, what: str) -> NaiadError:
    """For a client, who must not see paths of the server."""
    if error.errno in _NO_ROOM:
        return NaiadError(Code.RESOURCE_EXHAUSTED, f"{what}: the disk of the repository is full")
    name = errno.errorcode.get(error.errno or 0, "unknown")
    return NaiadError(Code.INTERNAL, f"{what}: the server's system refuses it ({name})")


class _Limit:
    def __init__(self, shown: str, packed_bytes: int, max_bytes: int) -> None:
        self.shown = shown
        self._max_bytes = max_bytes
        self._bomb_bytes = max(packed_bytes * MAX_RATIO, FREE_RATIO_BYTES)
        self._num_bytes = 0
        self._num_members = 0
        self._files: set[str] = set()
        self._folders: set[str] = set()

    @property
    def stream_bytes(self) -> int:
        """What may leave the decompressor of a tar archive, headers included."""
        return min(self._max_bytes, self._bomb_bytes) + MAX_MEMBERS * MAX_MEMBER_OVERHEAD

    def place(self, path: str, *, is_folder: bool) -> None:
        """Refuses a name that is there already, and what lies below a file."""
        above = path.split("/")
        folders = {"/".join(above[:count]) for count in range(1, len(above) + is_folder)}
        wrong = [name for name in sorted(folders) if name in self._files]
        if wrong or (not is_folder and path in self._folders):
            raise _refused(self.shown, f"'{(wrong or [path])[0]}' is both a file and a folder")
        if path in self._files:
            raise _refused(self.shown, f"'{path}' is in it twice")
        self._folders |= folders
        if not is_folder:
            self._files.add(path)

    def add_member(self) -> None:
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise _refused(self.shown, f"it has more than {MAX_MEMBERS} members")

    def add(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise _refused(self.shown, f"it unpacks to more than {self._max_bytes} bytes")
        if self._num_bytes > self._bomb_bytes:
            raise _refused(
                self.shown,
                f"it unpacks to more than {MAX_RATIO} times its size, as a zip bomb does",
            )


def _unpack_zip(path: Path, folder: Path, limit: _Limit) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            limit.add_member()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(limit.shown, f"'{member.filename}' is a link or a device")
            if member.flag_bits & 1:
                raise _refused(limit.shown, f"'{member.filename}' is encrypted")
            name = _inside(member.filename.rstrip("/"), limit)
            limit.place(name, is_folder=member.is_dir())
            target = folder / name
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            with archive.open(member) as source:
                _write(source, target, limit)


def _unpack_tar(path: Path, folder: Path, limit: _Limit) -> None:
    for member, source in tar_members(path, [GZIP], limit.stream_bytes):
        limit.add_member()
        name = member.name.removeprefix("./").rstrip("/")
        if not (member.isreg() or member.isdir()):
            raise _refused(limit.shown, f"'{member.name}' is a link or a device")
        if name in ("", "."):
            continue
        target = folder / _inside(name, limit)
        limit.place(name, is_folder=source is None)
        if source is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        with source:
            _write(source, target, limit)


def _inside(name: str, limit: _Limit) -> str:
    try:
        return check_path(name)
    except NaiadError as error:
        raise _refused(limit.shown, error.message) from None


def _write(source: IO[bytes], target: Path, limit: _Limit) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while block := source.read(BLOCK_BYTES):
            limit.add(len(block))
            file.write(block)


def _refused(shown: str, reason: str) -> NaiadError:
    return invalid_arg(f"the archive '{shown}' is refused: {reason}")
