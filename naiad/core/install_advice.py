"""The command that installs an extra, for the way this copy of Naiad was installed."""

from __future__ import annotations

from pathlib import Path

import naiad


def install_command(extra: str) -> str:
    """`pip install 'naiad[onnx]'`; in a checkout, which pip knows by its folder, `'.[onnx]'`."""
    root = Path(naiad.__file__).parent.parent
    package = "." if (root / "pyproject.toml").is_file() else "naiad"
    return f"pip install '{package}[{extra}]'"
