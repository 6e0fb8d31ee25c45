"""Backends that installed packages offer, by the entry point group `naiad.backends`: name ->
module:class.

Only the table is read here, in the server too; a package is imported in template and worker
processes alone.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

GROUP = "naiad.backends"


@cache
def installed_backends() -> dict[str, str]:
    """Read once: a package that is installed while the server runs is seen by the next one."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
