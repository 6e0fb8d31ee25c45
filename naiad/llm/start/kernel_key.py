"""Triton's key, computed while the weights load.

Triton files compiled kernels under a hash of its own library, hundreds of megabytes long, which it
computes at the first launch: half a second in which nothing else happens. Hashing needs no
interpreter, so here another thread does it meanwhile.
Rule: Triton is imported by the caller's thread, before. It imports itself in a circle, and of two
      threads that import it at once either may find it half done and fail: what loads weights may
      import it too.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def computed_meanwhile(device: torch.device) -> Iterator[None]:
    """When the block ends, the key is known (to Triton's own cache of it), or Triton is not
    there."""
    key = _find_key() if device.type == "cuda" else None
    if key is None:
        yield
        return
    thread = threading.Thread(target=key, name="triton-key", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _find_key() -> Callable[[], str] | None:
    """A Triton that keeps its key elsewhere computes it later, as it always did; one that is broken
    matters only to those who need it."""
    try:
        key: Callable[[], str] = importlib.import_module("triton.runtime.cache").triton_key
    except Exception:
        return None
    return key
