"""Triton's key, computed while the weights load.

Triton files compiled kernels under a hash of its own library, hundreds of megabytes long, which it computes at the first launch: half a
second in which nothing else happens. Hashing needs no interpreter, so here another thread does it meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def computed_meanwhile(device: torch.device) -> Iterator[None]:
    """When the block ends, the key is known (to Triton's own cache of it), or Triton is not there."""
    if device.type != "cuda":
        yield
        return
    thread = threading.Thread(target=_compute, name="triton-key", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _compute() -> None:
    """A Triton that keeps its key elsewhere computes it later, as it always did."""
    try:
        key = importlib.import_module("triton.runtime.cache").triton_key
    except (ImportError, AttributeError):
        return
    key()
