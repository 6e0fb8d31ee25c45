"""Drafts: folders for the files of a model that is not deployed yet, in the repository's own file
system.

In:  pieces of files, with their offsets. Out: complete files whose contents were checked.
A draft lives on the disk, so an upload goes on where it stopped, also after the server was killed.
Rule: the repository does not see drafts, because their folder's name begins with a dot. What a
      client sends is bounded, and is written only if the disk has room for all of it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError, internal, invalid_arg, not_found
from naiad.repository.deploy.unpack import is_archive, unpack_upload
from naiad.repository.deploy.upload_check import check_content, check_path

HIDDEN_FOLDER = ".naiad"
MAX_PIECE_BYTES = 8 << 20
MAX_FILES = 20_000
MAX_DRAFTS = 64
MAX_AGE_S = 24 * 3600.0
"""A draft that nobody has touched for this long is removed."""
RESERVED_BYTES = 256 << 20
"""Uploads leave this much of the disk free."""
ENVIRONMENT_FOLDER = "environment/"
"""Archives below it are Python environments, which are unpacked when the model is loaded."""
_ID = re.compile(r"[0-9a-f]{16}")


class DraftLimits(msgspec.Struct, frozen=True):
    max_bytes: int = 16 << 30
    """What the files of one draft may have together."""
    allow_pickle: bool = False


class DraftFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    received: int
    """The offset at which the upload goes on."""


class DraftStatus(msgspec.Struct, frozen=True):
    id: str
    files: list[DraftFile]

    @property
    def is_complete(self) -> bool:
        return all(file.received == file.size for file in self.files)


class Drafts:
    """All methods block, and are safe in threads."""

    def __init__(self, repository: Path, limits: DraftLimits) -> None:
        self._folder = repository / HIDDEN_FOLDER / "drafts"
        self._limits = limits
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """One for each draft: unpacking one must not hold up the others."""

    def create(self) -> DraftStatus:
        with self._lock:
            self._remove_stale()
            if self._folder.is_dir() and len(os.listdir(self._folder)) >= MAX_DRAFTS:
                raise NaiadError(
                    Code.RESOURCE_EXHAUSTED,
                    f"there are {MAX_DRAFTS} drafts already; discard some, or wait until they "
                    "expire",
                )
            draft_id = secrets.token_hex(8)
            try:
                (self._folder / draft_id / "files").mkdir(parents=True, mode=0o700)
                self._write_sizes(draft_id, {})
            except OSError as error:
                raise _failed(error) from error
            return DraftStatus(draft_id, [])

    def status(self, draft_id: str) -> DraftStatus:
        sizes = self._sizes(draft_id)
        return DraftStatus(
            draft_id,
            [
                DraftFile(path, size, self._received(draft_id, path))
                for path, size in sorted(sizes.items())
            ],
        )

    def write(self, draft_id: str, path: str, offset: int, size: int, piece: Buffer) -> DraftStatus:
        """Adds a piece to a file of `size` bytes. `offset` must be what the file has already."""
        self._sizes(draft_id)
        with self._locks[draft_id]:
            sizes = self._sizes(draft_id)
            if path not in sizes:
                self._add_file(draft_id, sizes, check_path(path), size)
            elif sizes[path] != size:
                raise invalid_arg(f"'{path}' was announced with {sizes[path]} bytes, not {size}")
            received = self._received(draft_id, path)
            if offset != received:
                raise invalid_arg(f"'{path}' has {received} bytes: the next piece begins there")
            if offset + len(piece) > size:
                raise invalid_arg(f"'{path}' would have more than the {size} bytes announced")
            file = self.file(draft_id, path)
            try:
                with file.open("ab") as opened:
                    opened.write(piece)
                os.utime(self._folder / draft_id)
            except OSError as error:
                raise _failed(error) from error
            if offset + len(piece) == size:
                self._complete(draft_id, sizes, path)
        return self.status(draft_id)

    def remove_file(self, draft_id: str, path: str) -> DraftStatus:
        self._sizes(draft_id)
        with self._locks[draft_id]:
            sizes = self._sizes(draft_id)
            if sizes.pop(path, None) is not None:
                self._write_sizes(draft_id, sizes)
                self.file(draft_id, path).unlink(missing_ok=True)
        return self.status(draft_id)

    def remove(self, draft_id: str) -> None:
        """To remove a draft that does not exist is no error."""
        if _ID.fullmatch(draft_id):
            shutil.rmtree(self._folder / draft_id, ignore_errors=True)
            self._locks.pop(draft_id, None)

    def has(self, draft_id: str) -> bool:
        return _ID.fullmatch(draft_id) is not None and (self._folder / draft_id).is_dir()

    def complete_files(self, draft_id: str) -> dict[str, Path]:
        """Path as it was sent -> the file. Raises NaiadError if one is not complete, or is refused:
        the server may have been killed before it could check the last one."""
        files: dict[str, Path] = {}
        for file in self.status(draft_id).files:
            if file.received != file.size:
                raise invalid_arg(
                    f"'{file.path}' is not complete: {file.received} of {file.size} bytes arrived"
                )
            files[file.path] = self.file(draft_id, file.path)
            if not is_archive(file.path):
                check_content(files[file.path], file.path, allow_pickle=self._limits.allow_pickle)
        return files

    def file(self, draft_id: str, path: str) -> Path:
        return self._folder / draft_id / "files" / path

    # Files.

    def _add_file(self, draft_id: str, sizes: dict[str, int], path: str, size: int) -> None:
        if len(sizes) >= MAX_FILES:
            raise invalid_arg(f"a model may have at most {MAX_FILES} files")
        total = sum(sizes.values()) + size
        if size < 0 or total > self._limits.max_bytes:
            raise invalid_arg(
                f"the files have {total} bytes together, and --console-max-upload-size allows "
                f"{self._limits.max_bytes}"
            )
        missing = sum(size - self._received(draft_id, other) for other, size in sizes.items())
        free = shutil.disk_usage(self._folder).free - RESERVED_BYTES - missing
        if size > free:
            raise NaiadError(
                Code.RESOURCE_EXHAUSTED,
                f"the disk of the repository has room for {max(free, 0)} more bytes, and '{path}' "
                f"has {size}",
            )
        file = self.file(draft_id, path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.open("xb").close()
        except OSError as error:
            raise invalid_arg(f"'{path}' cannot be stored: {error.strerror}") from None
        sizes[path] = size
        self._write_sizes(draft_id, sizes)

    def _complete(self, draft_id: str, sizes: dict[str, int], path: str) -> None:
        """Checks the contents, and unpacks an archive. A file that is refused is removed."""
        file = self.file(draft_id, path)
        is_environment = path.startswith(ENVIRONMENT_FOLDER)
        try:
            if not is_archive(path):
                check_content(file, path, allow_pickle=self._limits.allow_pickle)
            elif not is_environment:
                self._unpack(draft_id, sizes, path)
        except NaiadError:
            sizes.pop(path, None)
            self._write_sizes(draft_id, sizes)
            file.unlink(missing_ok=True)
            raise

    def _unpack(self, draft_id: str, sizes: dict[str, int], path: str) -> None:
        file = self.file(draft_id, path)
        folder = self._folder / draft_id / "unpacked"
        shutil.rmtree(folder, ignore_errors=True)
        room = shutil.disk_usage(self._folder).free - RESERVED_BYTES
        unpack_upload(file, folder, path, min(self._limits.max_bytes, room))
        try:
            found: dict[str, int] = {}
            for member in sorted(folder.rglob("*")):
                if member.is_file():
                    shown = member.relative_to(folder).as_posix()
                    check_content(member, shown, allow_pickle=self._limits.allow_pickle)
                    found[shown] = member.stat().st_size
            for shown in found:
                target = self.file(draft_id, shown)
                if target != file and shown in sizes:
                    raise invalid_arg(f"'{shown}' is both in '{path}' and next to it")
            file.unlink()
            for shown in found:
                target = self.file(draft_id, shown)
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                (folder / shown).rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        del sizes[path]
        sizes.update(found)
        self._write_sizes(draft_id, sizes)

    # The list of files.

    def _sizes(self, draft_id: str) -> dict[str, int]:
        try:
            if _ID.fullmatch(draft_id):
                text = (self._folder / draft_id / "sizes.json").read_bytes()
                return msgspec.json.decode(text, type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            pass
        raise not_found(
            f"there is no draft '{draft_id}': it was deployed, discarded or has expired"
        )

    def _write_sizes(self, draft_id: str, sizes: dict[str, int]) -> None:
        folder = self._folder / draft_id
        new = folder / "sizes.new"
        new.write_bytes(msgspec.json.encode(sizes))
        new.replace(folder / "sizes.json")

    def _received(self, draft_id: str, path: str) -> int:
        try:
            return self.file(draft_id, path).stat().st_size
        except OSError:
            return 0

    def _remove_stale(self) -> None:
        if not self._folder.is_dir():
            return
        for entry in list(os.scandir(self._folder)):
            if time.time() - entry.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def _failed(error: OSError) -> NaiadError:
    return internal(f"the upload cannot be written: {error.strerror}")
