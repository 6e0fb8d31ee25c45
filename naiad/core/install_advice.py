"""Commands to show to a user, for the way this copy of Naiad was installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import naiad


def install_command(extra: str) -> str:
    """`pip install 'naiad[onnx]'`; in a checkout, which pip knows by its folder, `'.[onnx]'`."""
    root = Path(naiad.__file__).parent.parent
    if not (root / "pyproject.toml").is_file():
        return f"pip install 'naiad[{extra}]'"
    # Clients may see this, so it does not name the folder.
    place = "" if root == Path.cwd() else " in the folder of Naiad's checkout"
    return f"pip install '.[{extra}]'{place}"


def shell_command(search_path: str | None = None) -> str:
    """Returns `naiad` if a shell finds this installation under that name, else the path of its
    script, such as `.venv/bin/naiad`. It is not for clients, who must not see paths."""
    script = Path(sys.executable).with_name("naiad")
    if not script.is_file():
        return "naiad"
    found = shutil.which("naiad", path=search_path)
    if found is not None and Path(found).resolve() == script.resolve():
        return "naiad"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
