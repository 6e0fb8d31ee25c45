"""Keeps the files that a config names inside the model's folder.

Only the name is checked: repositories keep large files behind symbolic links, which may lead
elsewhere.
"""

from __future__ import annotations

from pathlib import Path


def path_inside(folder: Path, name: str) -> Path | None:
    """Returns None if the name is absolute or leads out of the folder."""
    path = Path(name)
    return None if path.is_absolute() or ".." in path.parts or "\0" in name else folder / path
