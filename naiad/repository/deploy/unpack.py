"""Unpacks an uploaded zip or tar archive into a folder.

In:  the archive, and a folder that does not exist yet. Out: the complete folder, or NaiadError and
     no folder.
Rules: only files and folders; no links, no devices, no path that leads out. What is written is
       counted while it is written, because the sizes that an archive declares may be lies: an
       archive that grows too much is a bomb.
"""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO

from naiad.errors import NaiadError, invalid_arg
from naiad.repository.deploy.upload_check import check_path

MAX_MEMBERS = 20_000
MAX_RATIO = 200
"""Weights shrink by a factor of two or so. Only made-up data shrinks more than this."""
FREE_RATIO_BYTES = 64 << 20
"""An archive may always grow to this size, because small files of text shrink well."""
BLOCK_BYTES = 1 << 20
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def unpack_upload(archive: Path, folder: Path, shown: str, max_bytes: int) -> None:
    """Blocks. Raises NaiadError."""
    packed_bytes = archive.stat().st_size
    limit = _Limit(shown, packed_bytes, max_bytes)
    folder.mkdir(mode=0o700, parents=True)
    try:
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, folder, limit)
        else:
            _unpack_tar(archive, folder, limit)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _refused(shown, f"it cannot be read: {error}") from error
    except (NotImplementedError, RuntimeError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _refused(shown, str(error)) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _Limit:
    def __init__(self, shown: str, packed_bytes: int, max_bytes: int) -> None:
        self.shown = shown
        self._packed_bytes = packed_bytes
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_members = 0

    def add_member(self) -> None:
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise _refused(self.shown, f"it has more than {MAX_MEMBERS} members")

    def add(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise _refused(self.shown, f"it unpacks to more than {self._max_bytes} bytes")
        if self._num_bytes > max(self._packed_bytes * MAX_RATIO, FREE_RATIO_BYTES):
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
            target = folder / _inside(member.filename.rstrip("/"), limit)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            with archive.open(member) as source:
                _write(source, target, limit)


def _unpack_tar(path: Path, folder: Path, limit: _Limit) -> None:
    with tarfile.open(path) as archive:
        for member in archive:
            limit.add_member()
            name = member.name.removeprefix("./").rstrip("/")
            if not (member.isreg() or member.isdir()):
                raise _refused(limit.shown, f"'{member.name}' is a link or a device")
            if name in ("", "."):
                continue
            target = folder / _inside(name, limit)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            source = archive.extractfile(member)
            assert source is not None
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
