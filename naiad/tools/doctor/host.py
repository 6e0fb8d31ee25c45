"""The files of the machine that the checks read, below a root that tests may replace."""

from __future__ import annotations

from pathlib import Path


class Host:
    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Returns the text of a file of /proc or /sys, or None if it cannot be read."""
        try:
            return self.path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def read_int(self, path: str) -> int | None:
        """Returns None if the file is missing, or holds "max", which means no limit."""
        text = self.read(path)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None
