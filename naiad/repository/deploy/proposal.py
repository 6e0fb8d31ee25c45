"""A model as somebody wants it: its files and the text of its config, next to what is there now.

In:  files, contents and a text, from Deployer. Out: a mirror of the model for checks, or a change
     of the repository.
Rule: everything here blocks.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

import msgspec

from naiad.repository.deploy.change import Change, link_or_copy
from naiad.repository.deploy.spec import Spec
from naiad.repository.scan import CONFIG_FILE


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: Spec
    folder: Path
    """The model's place in the repository."""
    old_text: str | None
    text: str
    files: dict[str, Path]
    """Target in the model's folder -> file to put there."""
    contents: dict[str, str | bytes]
    """Target -> what to write there; config.pbtxt is not among them."""
    removed: list[str]
    """Files of the model that go."""

    @property
    def is_new(self) -> bool:
        return not self.folder.exists()

    def mirror(self, folder: Path) -> None:
        """Builds the model as it would be, made of links."""
        folder.mkdir()
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if entry.name not in (CONFIG_FILE, *self.contents, *self.removed):
                    (folder / entry.name).symlink_to(entry.absolute())
        self._write_files(folder)
        write_content(folder / CONFIG_FILE, self.text)
        if "ensemble_scheduling" in self.text:
            for entry in self.folder.parent.iterdir():
                if entry.is_dir() and not entry.name.startswith(".") and entry.name != folder.name:
                    (folder.parent / entry.name).symlink_to(entry.absolute())

    def place(self, change: Change) -> None:
        """Puts the files into the repository. Raises NaiadError and OSError."""
        staged = change.stage(self.name)
        staged.mkdir(parents=True)
        self._write_files(staged)
        if self.text and self.text != self.old_text:
            write_content(staged / CONFIG_FILE, self.text)
        if self.is_new:
            change.put(staged, self.folder)
        else:
            self._place_in_model(staged, change)

    def _write_files(self, folder: Path) -> None:
        for target, file in self.files.items():
            link_or_copy(file, folder / target)
        for target, content in self.contents.items():
            write_content(folder / target, content)
        has_version = any(is_in_version(target) for target in (*self.files, *self.contents))
        if self.spec.source.kind != "repository" and not has_version:
            # The checkpoint is elsewhere, but a model needs a version.
            (folder / str(self.spec.version)).mkdir(exist_ok=True)

    def _place_in_model(self, staged: Path, change: Change) -> None:
        """A new version appears as a whole, before the config that may name it."""
        for entry in sorted(staged.iterdir()):
            if entry.is_dir() and not (self.folder / entry.name).exists():
                change.put(entry, self.folder / entry.name)
        for path in sorted(staged.rglob("*")):
            target = self.folder / path.relative_to(staged)
            if path.is_file() and not (
                target.is_file() and filecmp.cmp(path, target, shallow=False)
            ):
                change.put(path, target)
        for name in self.removed:
            change.remove(self.folder / name)

    def shown_copies(self) -> list[tuple[str, str]]:
        """What a person would copy: the files under the names that they had."""
        copies: list[tuple[str, str]] = []
        for target, file in sorted(self.files.items()):
            parts = file.parts
            index = parts.index("files") + 1 if "files" in parts else len(parts) - 1
            copies.append(("/".join(parts[index:]), target))
        return copies


class Placed:
    """Files that are in their place. Exactly one of `keep` and `undo` must follow."""

    def __init__(self, change: Change, *, is_new: bool, drop: Callable[[], None]) -> None:
        """`drop` discards the drafts that the files came from."""
        self.is_new = is_new
        self._change = change
        self._drop = drop

    def keep(self) -> None:
        self._change.keep()
        self._drop()

    def undo(self) -> None:
        self._change.undo()


def is_in_version(target: str) -> bool:
    top, _, rest = target.partition("/")
    return bool(rest) and top.isdigit()


def read_text(path: Path) -> str | None:
    content = read_bytes(path)
    return None if content is None else content.decode("utf-8", "surrogateescape")


def read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")


def write_content(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_bytes(content))
