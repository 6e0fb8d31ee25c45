"""Builds a model's directory from the cache: one directory for each state of the model.

The files are hard links to the cached files, so a new state needs disk space only for what changed,
and an unchanged file keeps its time and inode. A copy that still serves an older state keeps the
directory of that state.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from naiad.files.private_folder import PRIVATE
from naiad.stores.bucket import RemoteFile

NUM_KEPT = 2
"""States that are kept per model. A copy that is serving its last requests may still read an older
state."""


def revision(files: list[RemoteFile]) -> str:
    digest = hashlib.sha256()
    for id in sorted(file.id for file in files):
        digest.update(id.encode())
    return digest.hexdigest()[:16]


def snapshot_path(folder: Path, name: str, files: list[RemoteFile]) -> Path:
    return folder / "models" / name / revision(files) / name


def make_snapshot(folder: Path, name: str, files: list[RemoteFile], blobs: Path) -> Path:
    """All files must be in `blobs`. The directory is complete, or is not created at all."""
    path = snapshot_path(folder, name, files)
    if path.is_dir():
        if all(
            file.is_directory or _is_same(path.parent / file.path, blobs / file.id)
            for file in files
        ):
            os.utime(path.parent)
            return path
        shutil.rmtree(path.parent)
    new = path.parent.with_name(f".{path.parent.name}.{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    (new / name).mkdir(parents=True, mode=PRIVATE)
    for file in files:
        target = new / file.path
        (target if file.is_directory else target.parent).mkdir(
            parents=True, exist_ok=True, mode=PRIVATE
        )
        if not file.is_directory:
            _link(blobs / file.id, target)
    os.rename(new, path.parent)
    return path


def prune(folder: Path, names: set[str], wanted: set[str]) -> None:
    """Deletes old states of these models, and cached files that are neither linked nor `wanted`
    (a set of ids)."""
    for name in names:
        states = sorted(
            (folder / "models" / name).glob("*"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in states[:-NUM_KEPT]:
            shutil.rmtree(path, ignore_errors=True)
    for blob in (folder / "blobs").iterdir():
        if blob.name not in wanted and blob.stat().st_nlink == 1:
            blob.unlink()


def _link(blob: Path, target: Path) -> None:
    try:
        os.link(blob, target)
    except OSError:  # The file system has no hard links.
        shutil.copy2(blob, target)


def _is_same(path: Path, blob: Path) -> bool:
    try:
        one, other = path.lstat(), blob.lstat()
    except OSError:
        return False
    return one.st_ino == other.st_ino or (one.st_size, one.st_mtime_ns) == (
        other.st_size,
        other.st_mtime_ns,
    )
