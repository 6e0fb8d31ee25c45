"""Where `naiad cluster` keeps what it knows about this machine."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """The folder of everything that a cluster keeps on this machine."""
    if chosen := os.environ.get("NAIAD_CLUSTER_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "naiad/cluster"


def is_in_cluster() -> bool:
    """True if this machine was made the head of a cluster, or has joined one."""
    try:
        return (state_folder() / "head").is_file()
    except (OSError, RuntimeError):  # there is no home folder, or it cannot be read
        return False
