"""Drafts: folders for the files of a model that is not deployed yet, in the repository's own file
system.

In:  pieces of files, with their offsets. Out: complete files whose contents were checked.
A draft lives on the disk, so an upload goes on where it stopped, also after the server was killed.
Rules: the repository does not see drafts, because their folder's name begins with a dot. What a
       client sends is bounded, and is written only if the disk has room for all of it. The files
       are a tree to which the link `files` leads: an archive is unpacked into a new tree, which
       gets the other files, too, and then takes the place of the old one in one step.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

import msgspec

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError, invalid_arg, not_found
from naiad.repository.deploy.change import HIDDEN_FOLDER, link_or_copy
from naiad.repository.deploy.unpack import is_archive, system_fault
from naiad.repository.deploy.upload_check import check_content, check_path
from naiad.repository.reading_process import Readers
from naiad.repository.unpacking import CheckFiles, UnpackUpload, read_in_process

MAX_PIECE_BYTES = 8 << 20
MAX_FILES = 20_000
MAX_DRAFTS = 64
MAX_OWN_DRAFTS = 16
"""Drafts of one key: a key must not keep others from deploying."""
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

    def __init__(
        self, repository: Path, limits: DraftLimits, readers: Readers | None = None
    ) -> None:
        self._folder = repository / HIDDEN_FOLDER / "drafts"
        self._readers = readers or Readers()
        self._limits = limits
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """One for each draft: unpacking one must not hold up the others."""

    def create(self, owner: str = "") -> DraftStatus:
        """`owner` is the id of the key; empty where nobody needs one."""
        with self._lock:
            self._remove_stale()
            owners = self._owners()
            if owner and owners.count(owner) >= MAX_OWN_DRAFTS:
                raise _too_many(f"the key '{owner}' has {MAX_OWN_DRAFTS} drafts already")
            if len(owners) >= MAX_DRAFTS:
                raise _too_many(f"there are {MAX_DRAFTS} drafts already")
            draft_id = secrets.token_hex(8)
            try:
                tree = self._new_tree(draft_id)
                tree.mkdir(parents=True, mode=0o700)
                self._use_tree(draft_id, tree)
                (self._folder / draft_id / "owner").write_text(owner)
                self._write_sizes(draft_id, {})
            except OSError as error:
                raise system_fault(error, "the draft cannot be made") from error
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
                raise system_fault(error, f"'{path}' cannot be written") from error
            if offset + len(piece) == size:
                self._complete(draft_id, sizes, path)
        return self.status(draft_id)

    def remove_file(self, draft_id: str, path: str) -> DraftStatus:
        self._sizes(draft_id)
        with self._locks[draft_id]:
            sizes = self._sizes(draft_id)
            if sizes.pop(path, None) is not None:
                self._write_sizes(draft_id, sizes)
                self._unlink(draft_id, path)
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
        self._check({path: file for path, file in files.items() if not is_archive(path)})
        return files

    def file(self, draft_id: str, path: str) -> Path:
        return self._folder / draft_id / "files" / path

    # Files.

    def _add_file(self, draft_id: str, sizes: dict[str, int], path: str, size: int) -> None:
        if len(sizes) >= MAX_FILES:
            raise invalid_arg(f"a model may have at most {MAX_FILES} files")
        wrong = _conflict(path, sizes, _folders(sizes))
        if wrong:
            raise invalid_arg(f"'{path}' cannot be stored: '{wrong}' would be a file and a folder")
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
            raise system_fault(error, f"'{path}' cannot be stored") from error
        sizes[path] = size
        self._write_sizes(draft_id, sizes)

    def _complete(self, draft_id: str, sizes: dict[str, int], path: str) -> None:
        """Checks the contents, and unpacks an archive. A file that is refused is removed."""
        is_environment = path.startswith(ENVIRONMENT_FOLDER)
        try:
            if not is_archive(path):
                self._check({path: self.file(draft_id, path)})
            elif not is_environment:
                self._unpack(draft_id, sizes, path)
        except NaiadError as error:
            if error.code is Code.UNAVAILABLE:
                raise  # the server stops: the file is looked at when the draft is used
            sizes.pop(path, None)
            self._write_sizes(draft_id, sizes)
            self._unlink(draft_id, path)
            raise

    def _check(self, files: dict[str, Path]) -> None:
        """Raises NaiadError for a pickle. A table of contents is read in another process."""
        if self._limits.allow_pickle:
            return
        tables: dict[str, str] = {}
        for path, file in files.items():
            if zipfile.is_zipfile(file):
                tables[path] = str(file)
            else:
                check_content(file, path, allow_pickle=False)
        if tables:
            what = f"the check of '{next(iter(tables))}'"
            read_in_process(self._readers, CheckFiles(tables), what)

    def _unpack(self, draft_id: str, sizes: dict[str, int], path: str) -> None:
        tree = self._new_tree(draft_id)
        room = shutil.disk_usage(self._folder).free - RESERVED_BYTES
        most, allow_pickle = min(self._limits.max_bytes, room), self._limits.allow_pickle
        archive = str(self.file(draft_id, path))
        work = UnpackUpload(archive, str(tree), path, most, allow_pickle)
        try:
            found = read_in_process(self._readers, work, f"unpacking '{path}'")
            kept = {other: size for other, size in sizes.items() if other != path}
            self._join(draft_id, tree, path, found, kept)
            self._use_tree(draft_id, tree)
        except OSError as error:
            shutil.rmtree(tree, ignore_errors=True)
            raise system_fault(error, f"'{path}' cannot be unpacked") from error
        except BaseException:
            shutil.rmtree(tree, ignore_errors=True)
            raise
        del sizes[path]
        sizes.update(found)
        self._write_sizes(draft_id, sizes)

    def _join(
        self, draft_id: str, tree: Path, path: str, found: dict[str, int], kept: dict[str, int]
    ) -> None:
        """Gives the new tree the files that were next to the archive. Raises NaiadError."""
        folders = _folders(found)
        for other in kept:
            if other in found:
                raise invalid_arg(f"'{other}' is both in '{path}' and next to it")
            wrong = _conflict(other, found, folders)
            if wrong:
                raise invalid_arg(
                    f"'{wrong}' would be a file of '{path}' and a folder, or the reverse"
                )
        for other in kept:
            target = tree / other
            link_or_copy(self.file(draft_id, other), target)

    # Trees.

    def _new_tree(self, draft_id: str) -> Path:
        return self._folder / draft_id / f"tree-{secrets.token_hex(4)}"

    def _use_tree(self, draft_id: str, tree: Path) -> None:
        link = self._folder / draft_id / "files"
        old = link.resolve()
        new = link.with_name("files.new")
        new.unlink(missing_ok=True)
        new.symlink_to(tree.name)
        new.replace(link)
        if old != link and old != tree:
            shutil.rmtree(old, ignore_errors=True)

    def _unlink(self, draft_id: str, path: str) -> None:
        """Removes a file, and the folders that were made for it."""
        files = self._folder / draft_id / "files"
        (files / path).unlink(missing_ok=True)
        for parent in list((files / path).parents)[: path.count("/")]:
            with contextlib.suppress(OSError):  # another file is in it
                parent.rmdir()

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

    def _owners(self) -> list[str]:
        """The owner of each draft."""
        if not self._folder.is_dir():
            return []
        files = [folder / "owner" for folder in self._folder.iterdir()]
        return [file.read_text() if file.is_file() else "" for file in files]

    def _remove_stale(self) -> None:
        if not self._folder.is_dir():
            return
        for entry in list(os.scandir(self._folder)):
            if time.time() - entry.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def _folders(paths: Iterable[str]) -> set[str]:
    return {str(parent) for path in paths for parent in PurePosixPath(path).parents}


def _conflict(path: str, files: Collection[str], folders: set[str]) -> str:
    """The name that would be a file and a folder; empty if there is none."""
    if path in folders:
        return path
    return next((name for name in _folders([path]) if name in files), "")


def _too_many(reason: str) -> NaiadError:
    return NaiadError(Code.RESOURCE_EXHAUSTED, f"{reason}; discard some, or wait until they expire")
