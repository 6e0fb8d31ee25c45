"""The Python interpreters of this machine that a model may ask for by version.

In:  a PATH. Out: versions, such as 3.12, and the interpreters that were found for them.
Rule: a command counts only if it runs and can make environments: what a version manager puts on the
      PATH may be a script that refuses to run. Everything here blocks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.repository.environment.probe import MIN_VERSION

_LAST_MINOR = 30
_TRIAL_S = 10.0


def installed_pythons(path: str) -> dict[str, Path]:
    """Each version -> its interpreter. The server's own is always among them; the others are the
    commands `python3.N` in the folders of `path`."""
    return dict(_find_all(path))


@lru_cache(maxsize=8)
def _find_all(path: str) -> tuple[tuple[str, Path], ...]:
    """The trials take 50 ms each, so they are not repeated: who installs another Python starts the
    server again."""
    found: list[tuple[str, Path]] = []
    for minor in range(MIN_VERSION[1], _LAST_MINOR):
        version = f"3.{minor}"
        if version == own_version():
            found.append((version, Path(sys.executable)))
            continue
        commands = (Path(folder) / f"python{version}" for folder in path.split(os.pathsep))
        usable = next((command for command in commands if _is_usable(command)), None)
        if usable is not None:
            found.append((version, usable))
    return tuple(found)


def _is_usable(command: Path) -> bool:
    if not command.is_absolute() or not os.access(command, os.X_OK) or command.is_dir():
        return False
    try:
        trial = subprocess.run(
            [str(command), "-P", "-c", "import venv"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


def find_python(version: str, path: str, model: str) -> Path:
    """Raises NaiadError."""
    pythons = installed_pythons(path)
    if version not in pythons:
        raise invalid_arg(
            f"model '{model}' asks for Python {version}, which this machine does not have; it has "
            f"{', '.join(pythons)}"
        )
    return pythons[version]


def own_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
