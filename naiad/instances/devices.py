"""Which GPUs models may use on this machine. No GPU library is loaded into the server for that."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path


def gpu_ids(
    environ: Mapping[str, str] = os.environ, device_dir: Path = Path("/dev")
) -> tuple[int, ...]:
    """The numbers that `gpus` of an instance_group may use: 0 is the first GPU that
    CUDA_VISIBLE_DEVICES makes visible."""
    if environ.get("TRITON_SERVER_CPU_ONLY"):
        return ()
    try:
        present = [
            entry.name for entry in device_dir.iterdir() if re.fullmatch(r"nvidia\d+", entry.name)
        ]
    except OSError:
        return ()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(range(len(present)))
    # CUDA stops reading at the first entry that it cannot use.
    usable = 0
    for entry in visible.split(","):
        entry = entry.strip()
        if not entry or entry.startswith("-") or (entry.isdigit() and int(entry) >= len(present)):
            break
        usable += 1
    return tuple(range(min(usable, len(present))))
