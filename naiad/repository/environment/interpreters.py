"""The Python interpreters of this machine that a model may ask for by version."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.repository.environment.probe import MIN_VERSION

_LAST_MINOR = 30


def installed_pythons(environment: Mapping[str, str]) -> dict[str, Path]:
    """Each version, such as 3.12 -> its interpreter. The server's own is always among them; the
    others are the commands `python3.N` on the PATH of `environment`."""
    found: dict[str, Path] = {}
    for minor in range(MIN_VERSION[1], _LAST_MINOR):
        path = shutil.which(f"python3.{minor}", path=environment.get("PATH"))
        if path is not None:
            found[f"3.{minor}"] = Path(path)
    found[own_version()] = Path(sys.executable)
    return dict(sorted(found.items(), key=lambda row: int(row[0].partition(".")[2])))


def find_python(version: str, environment: Mapping[str, str], model: str) -> Path:
    """Raises NaiadError."""
    pythons = installed_pythons(environment)
    if version not in pythons:
        raise invalid_arg(
            f"model '{model}' asks for Python {version}, which this machine does not have; it has "
            f"{', '.join(pythons)}"
        )
    return pythons[version]


def own_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
