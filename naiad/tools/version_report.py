"""What `naiad --version` prints: the version, and what a report of a bug should contain.

Rule: the first line is `naiad VERSION`, which scripts read. Nothing secret is printed: no
      environment variables, no host name.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import naiad
from naiad import __version__
from naiad.tools.doctor.packages import read_requirements
from naiad.tools.machine import machine_text


def version_report() -> str:
    lines = [
        f"naiad {__version__}",
        f"source:   {_source()}",
        f"python:   {platform.python_version()} {platform.python_implementation()}, "
        f"{sys.executable}",
        f"system:   {_system()}, {' '.join(filter(None, platform.libc_ver()))}",
        f"machine:  {machine_text()}",
        f"packages: {', '.join(_packages())}",
    ]
    return "\n".join(lines)


def _source() -> str:
    package = Path(naiad.__file__).parent
    command = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12"]
    if not (package.parent / "pyproject.toml").is_file():
        return str(package)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=1)
    except (OSError, subprocess.TimeoutExpired):
        return str(package)
    commit = result.stdout.strip()
    return f"{package}, commit {commit}" if result.returncode == 0 and commit else str(package)


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _packages() -> list[str]:
    """The installed packages among those that Naiad or its extras require."""
    versions: dict[str, str] = {}
    for requirement in read_requirements():
        try:
            versions[requirement.name] = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
    versions.pop("naiad", None)
    return [f"{name} {version}" for name, version in versions.items()] or ["unknown"]
