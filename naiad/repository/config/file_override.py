"""Writes the files of a load request into a directory of their own, which is the model's directory
while it is loaded.

In:  `file:<path>` parameters. Out: an OverrideFolder, held by every version that was loaded from
     it.
Rules: paths are relative to the model's directory, with or without a leading slash. A path outside
       of it is refused before anything is written. The directory has mode 0700. It is deleted
       when its last holder releases it; directories that a killed server left behind are deleted
       when the next server starts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from naiad.errors import NaiadError, internal, invalid_arg

PREFIX = "naiad-model-"
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255


class OverrideFolder:
    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self.directory = directory
        self._num_holders = 0

    def hold(self) -> None:
        self._num_holders += 1

    def release(self) -> None:
        """The files are deleted when the last holder has released the folder."""
        self._num_holders -= 1
        self.drop_if_unheld()

    def drop_if_unheld(self) -> None:
        if self._num_holders <= 0:
            shutil.rmtree(self._root, ignore_errors=True)


def write_override_files(model_name: str, files: dict[str, str | bytes]) -> OverrideFolder:
    """Blocks. Raises NaiadError; nothing is left on disk then."""
    paths = {path: _checked(path) for path in files}
    try:
        root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    except OSError as error:
        raise internal(
            f"failed to create a temporary directory for the files of model '{model_name}': "
            f"{error.strerror}"
        ) from error
    folder = OverrideFolder(root, root / model_name)
    try:
        folder.directory.mkdir(mode=0o700)
        for path, content in files.items():
            target = folder.directory.joinpath(*paths[path])
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        folder.drop_if_unheld()
        raise _unwritable(path, error) from error
    return folder


def remove_leftovers() -> None:
    """Deletes the folders that killed servers of this user left behind."""
    try:
        root = Path(tempfile.gettempdir())
    except OSError:
        return  # there is no temporary directory: nothing was left in it, either
    for folder in root.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            status = folder.lstat()
        except OSError:
            continue
        if (
            pid.isdigit()
            and status.st_uid == os.geteuid()
            and not folder.is_symlink()
            and not Path(f"/proc/{pid}").exists()
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _checked(path: str) -> list[str]:
    """The parts of the path after `..` has been resolved."""
    parts: list[str] = []
    is_inside = True
    for part in path.split("/"):
        if part == "..":
            is_inside = is_inside and bool(parts)
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    names_file = bool(parts) and path.rpartition("/")[2] not in ("", ".", "..")
    is_plain = "\\" not in path and all(ord(character) >= 32 for character in path)
    if not (is_inside and names_file and is_plain):
        raise invalid_arg(
            f"Invalid file parameter 'file:{_shown(path)}': the path must stay within model "
            "directory."
        )
    try:
        encoded = [os.fsencode(part) for part in parts]
    except UnicodeEncodeError:
        raise invalid_arg(
            f"Invalid file parameter 'file:{_shown(path)}': it is not a valid file name."
        ) from None
    if len(path) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in encoded):
        raise invalid_arg(f"Invalid file parameter 'file:{_shown(path)}': the path is too long.")
    return parts


def _unwritable(path: str, error: OSError) -> NaiadError:
    if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
        return invalid_arg(
            f"Invalid file parameter 'file:{_shown(path)}': another parameter uses the same "
            "path as a directory or a file."
        )
    return internal(f"failed to write 'file:{_shown(path)}' of the load request: {error.strerror}")


def _shown(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode()
    text = "".join(
        character if character.isprintable() else f"\\x{ord(character):02x}" for character in text
    )
    return text if len(text) <= 120 else text[:117] + "..."
