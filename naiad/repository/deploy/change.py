"""A change of the repository's files that happens as a whole, or not at all.

In:  staged files and folders, and where they belong. Out: the changed repository; `undo` puts back
     what was there.
Rules: a file is replaced by one rename, a new folder appears by one rename. A journal in the
       staging folder says what to undo if the server is killed before the model serves; the lock of
       the staging folder tells whether its server still lives.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal, invalid_arg

HIDDEN_FOLDER = ".naiad"
_STAGE = "stage-"
LOOK = "look-"
"""The names of folders in which a model is only looked at begin so."""
MAX_LOOK_S = 3600.0


class _Step(msgspec.Struct, frozen=True):
    target: str
    """Relative to the repository."""
    has_backup: bool
    """The old file is in the folder `backup` under the step's number; else there was none."""


class Change:
    """All methods block."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.folder = repository / HIDDEN_FOLDER / f"{_STAGE}{secrets.token_hex(6)}"
        self._steps: list[_Step] = []
        try:
            (self.folder / "backup").mkdir(parents=True, mode=0o700)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _failed(error) from error

    def stage(self, name: str) -> Path:
        """A place for something new, below the staging folder."""
        path = self.folder / "new" / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        return path

    def put(self, staged: Path, target: Path) -> None:
        """Moves a staged file or folder to its place. A file there is replaced; a folder must not
        be there. Raises NaiadError."""
        has_backup = target.is_file()
        if target.exists() and not has_backup:
            raise invalid_arg(f"'{target.relative_to(self.repository)}' exists already")
        try:
            if has_backup:
                _link(target, self.folder / "backup" / str(len(self._steps)))
            self._steps.append(_Step(str(target.relative_to(self.repository)), has_backup))
            self._write_journal()
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(target)
        except OSError as error:
            raise _failed(error) from error

    def remove(self, target: Path) -> None:
        """Removes a file. Raises NaiadError."""
        try:
            _link(target, self.folder / "backup" / str(len(self._steps)))
            self._steps.append(_Step(str(target.relative_to(self.repository)), True))
            self._write_journal()
            target.unlink()
        except OSError as error:
            raise _failed(error) from error

    def keep(self) -> None:
        """The change stays: there is nothing to undo any more."""
        (self.folder / "journal.json").unlink(missing_ok=True)
        self._close()

    def undo(self) -> None:
        _undo(self.repository, self.folder, self._steps)
        self._close()

    def _write_journal(self) -> None:
        new = self.folder / "journal.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self._steps))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / "journal.json")

    def _close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def recover(repository: Path) -> None:
    """Undoes the changes of a server that was killed before the model served. Blocks."""
    hidden = repository / HIDDEN_FOLDER
    if not hidden.is_dir():
        return
    for folder in hidden.glob(f"{LOOK}*"):
        if time.time() - folder.stat().st_mtime > MAX_LOOK_S:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in sorted(hidden.glob(f"{_STAGE}*")):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            steps = _read_journal(folder)
            _undo(repository, folder, steps)
            shutil.rmtree(folder, ignore_errors=True)
            for step in steps:
                log.warning(f"undid a deployment that was interrupted: {step.target}")
        except OSError:
            continue  # another server is at work in it
        finally:
            os.close(lock)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link, so that gigabytes are not copied; a copy where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _link(source, target)


def _read_journal(folder: Path) -> list[_Step]:
    try:
        return msgspec.json.decode((folder / "journal.json").read_bytes(), type=list[_Step])
    except (OSError, msgspec.DecodeError):
        return []


def _undo(repository: Path, folder: Path, steps: list[_Step]) -> None:
    for index, step in reversed(list(enumerate(steps))):
        target, backup = repository / step.target, folder / "backup" / str(index)
        if step.has_backup:
            if backup.exists():
                backup.replace(target)
        elif target.is_dir() and not target.is_symlink():
            # A rename first, so that the repository never shows half a model.
            gone = folder / f"gone-{index}"
            target.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _failed(error: OSError) -> NaiadError:
    return internal(f"the repository cannot be written: {error.strerror or error}")
