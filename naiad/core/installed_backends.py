"""Backends of installed packages, found through the entry point group `naiad.backends`.

This file reads only the names, so the server may call it. The packages themselves are imported in
template and worker processes only.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

GROUP = "naiad.backends"


@cache
def installed_backends() -> dict[str, str]:
    """Returns backend name -> "module:class".

    The table is read once. A package installed later is found after the next start of the server.
    """
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
