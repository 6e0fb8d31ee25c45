"""The key file on disk: read as a whole, changed as a whole.

In:  a path. Out: KeyDocument; changes made by a function from document to document.
Rule: a reader sees the file before or after a change, never in between: changes are written to a
      new file, which replaces the old one, under a lock that all writers share. A writer that is
      killed or finds the disk full leaves the old file as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from naiad.errors import internal, invalid_arg
from naiad.keys.key import KeyDocument, decode_document, encode_document

MAX_FILE_BYTES = 256 << 20
_PRIVATE = 0o600


class KeyFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> KeyDocument:
        """Raises NaiadError if the file is missing or broken, or other users may read it."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            raise invalid_arg(
                f"the key file '{self.path}' does not exist; create the first key with "
                f"`naiad key create NAME --api-key-file {self.path}`"
            ) from None
        except OSError as error:
            raise internal(f"the key file '{self.path}' cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise invalid_arg(f"the key file '{self.path}' is not a regular file")
        if status.st_mode & 0o022:
            raise invalid_arg(
                f"other users may change the key file '{self.path}'; run `chmod 600 {self.path}`"
            )
        if len(data) > MAX_FILE_BYTES:
            raise invalid_arg(f"the key file '{self.path}' is larger than {MAX_FILE_BYTES} bytes")
        return decode_document(data)

    def change(self, edit: Callable[[KeyDocument], KeyDocument]) -> KeyDocument:
        """Replaces the document by `edit(document)`. Blocks while another writer holds the lock.

        Raises NaiadError; the file is then as it was.
        """
        with self._lock():
            exists = self.path.exists()
            document = edit(self.read() if exists else KeyDocument())
            data = encode_document(document)
            decode_document(data)  # what is written can be read again
            self._replace(data)
        return document

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """The lock is a file of its own, because the key file is replaced by every change."""
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE
            )
        except OSError as error:
            raise internal(f"cannot create '{path}': {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, data: bytes) -> None:
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            # A writer that was killed may have left its file. Nobody writes to it any more: we hold
            # the lock.
            new.unlink(missing_ok=True)
            descriptor = os.open(
                new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise internal(
                f"the key file '{self.path}' cannot be written and is unchanged: {error.strerror}"
            ) from None
