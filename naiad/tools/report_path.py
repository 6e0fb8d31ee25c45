"""Checks that reports can be written to the requested paths, before a measurement starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from naiad.settings.option import OptionError


def check_file(option: str, path: str) -> None:
    """Raises OptionError if the file cannot be written."""
    file = Path(path)
    if file.is_dir():
        raise OptionError(f"{option} {path} cannot be written: it is a folder, expected a file")
    if not file.exists() and not file.parent.is_dir():
        raise OptionError(
            f"{option} {path} cannot be written: the folder {file.parent} does not exist"
        )
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise OptionError(f"{option} {path} cannot be written: {os.strerror(errno.EACCES)}")


def make_folder(option: str, path: str) -> None:
    """Creates the folder unless it exists. Raises OptionError if it cannot be written."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be written: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise OptionError(f"{option} {path} cannot be written: {os.strerror(errno.EACCES)}")
