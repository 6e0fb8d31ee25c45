"""A folder that is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from naiad.errors import unavailable


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to write into, which then gets the name of `folder`. Where that exists
    it must be empty. Raises NaiadError when the system refuses to write, for example because the
    disk is full; nothing is left then."""
    made: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield made
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o777 & ~mask)
        made.replace(folder)
    except BaseException as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):
            raise unavailable(f"'{folder}' cannot be written: {error.strerror}") from error
        raise
