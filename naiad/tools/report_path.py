"""Whether a report can be written where it was asked for: said before anything is measured, not
after."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from naiad.settings.option import OptionError


def check_file(option: str, path: str) -> None:
    """Raises OptionError."""
    place = Path(path)
    if place.is_dir():
        raise OptionError(f"{option} {path} is a folder")
    if not place.exists() and not place.parent.is_dir():
        raise OptionError(f"{option} {path} cannot be written: there is no folder {place.parent}")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise OptionError(f"{option} {path} cannot be written: {os.strerror(errno.EACCES)}")


def make_folder(option: str, path: str) -> None:
    """Raises OptionError."""
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be written: {error.strerror}") from None
    if not os.access(place, os.W_OK):
        raise OptionError(f"{option} {path} cannot be written: {os.strerror(errno.EACCES)}")
