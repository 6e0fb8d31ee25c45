"""The configuration that an analysis proposes, as a change of the model's config.pbtxt.

In:  the model's directory, and the config that `naiad analyze` wrote in a copy of the repository.
Out: a diff; the file, when somebody applies it.
Rule: a file that has changed since the diff was shown is not overwritten.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from naiad.errors import NaiadError, internal, invalid_arg

CONFIG_FILE = "config.pbtxt"
_CONTEXT_LINES = 3


class Proposal(msgspec.Struct, frozen=True):
    file: str
    """The path within the repository: MODEL/config.pbtxt."""
    tag: str
    """Identifies the file as it was when the diff was made."""
    diff: str
    """Unified; empty if the analysis proposes nothing."""
    is_applied: bool
    """The file has the proposed text."""


def copy_repository(repository: Path, target: Path) -> None:
    """Makes a repository that an analysis may change: configs are copied, other files are links."""
    for source in sorted(repository.iterdir()):
        if not source.is_dir() or source.name.startswith("."):
            continue
        model = target / source.name
        model.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name == CONFIG_FILE:
                (model / CONFIG_FILE).write_bytes(entry.read_bytes())
            else:
                (model / entry.name).symlink_to(entry.resolve(), entry.is_dir())


def propose(directory: Path, copy: Path) -> Proposal:
    old, new = _read(directory / CONFIG_FILE), _read(copy / CONFIG_FILE)
    name = f"{directory.name}/{CONFIG_FILE}"
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", "", "", _CONTEXT_LINES, ""
    )
    return Proposal(name, _tag(old), "\n".join(lines), is_applied=old == new)


def write_config(directory: Path, text: str, tag: str) -> str:
    """Replaces the file at once. Returns the old text. Raises NaiadError."""
    path = directory / CONFIG_FILE
    old = _read(path)
    if _tag(old) != tag:
        raise invalid_arg(
            f"{directory.name}/{CONFIG_FILE} has changed since the diff was made; look at it again"
        )
    try:
        with tempfile.NamedTemporaryFile("w", dir=directory, delete=False) as file:
            file.write(text)
        if path.exists():
            os.chmod(file.name, path.stat().st_mode & 0o777)
        else:
            os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise unwritable(directory, error) from None
    return old


def unwritable(directory: Path, error: OSError) -> NaiadError:
    return internal(f"{directory.name}/{CONFIG_FILE} cannot be written: {error.strerror}")


def tag_of(directory: Path) -> str:
    return _tag(_read(directory / CONFIG_FILE))


def _read(path: Path) -> str:
    """Returns "" for a file that does not exist."""
    return path.read_text() if path.is_file() else ""


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
