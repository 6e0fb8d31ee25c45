"""Commands to show to a user, for the way this copy of Naiad was installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def install_command(extra: str) -> str:
    """`pip install '.[onnx]'`: no index has the package, so pip is given the checkout's folder."""
    # Clients may see this, so it does not name the folder.
    in_checkout = (Path.cwd() / "naiad" / "__init__.py").is_file()
    place = "" if in_checkout else " in the folder of Naiad's checkout"
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
