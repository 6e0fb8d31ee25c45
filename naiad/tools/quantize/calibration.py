"""Text -> batches of tokens: for calibration, and others, which calibration never sees, to measure
with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from naiad.errors import invalid_arg, not_found

BUILT_IN = "calibration.txt"
HELD_OUT = 5
"""Every fifth stretch of the text is kept to measure with."""
MAX_MEASURED = 8


def read_text(path: Path | None) -> str:
    if path is None:
        return files("naiad.tools.quantize").joinpath(BUILT_IN).read_text()
    if not path.is_file():
        raise not_found(f"calib_dataset '{path}' is not a file; expected plain text")
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise invalid_arg(f"calib_dataset '{path}' is not UTF-8 text: {error}") from None


def cut_tokens(tokens: list[int], count: int, length: int) -> tuple[Tensor, Tensor]:
    """Stretches of equal length, [count, length] each: to calibrate with, and to measure with."""
    size = min(length, max(16, len(tokens) // (2 * HELD_OUT)))
    stretches = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]
    if len(stretches) < 2:
        raise invalid_arg(
            f"the calibration text has {len(tokens)} tokens, expected {4 * 16} at least"
        )
    measured = stretches[HELD_OUT - 1 :: HELD_OUT] or stretches[-1:]
    used = [stretch for index, stretch in enumerate(stretches) if index % HELD_OUT != HELD_OUT - 1][
        :count
    ]
    return torch.tensor(used), torch.tensor(measured[:MAX_MEASURED])
