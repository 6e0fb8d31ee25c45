"""A file that a config names must lie in its folder: by its name, because links out of it are how
repositories keep large files."""

from __future__ import annotations

from pathlib import Path


def path_inside(folder: Path, name: str) -> Path | None:
    """None when the name leads elsewhere."""
    path = Path(name)
    return None if path.is_absolute() or ".." in path.parts or "\0" in name else folder / path
