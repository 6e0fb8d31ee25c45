"""Computes Triton's cache key while the weights load.

Triton stores compiled kernels under a hash of its own library, which is hundreds of megabytes long,
and computes it at the first launch: half a second in which nothing else happens. Hashing does not
need the interpreter, so another thread does it here.
Rule: the caller's thread imports Triton first. Triton's imports are circular, so if two threads
      import it at once, either may find it half imported and fail; the code that loads weights may
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
    """When the block ends, Triton has its key in its own cache, or Triton is not installed."""
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
    """Returns None if Triton keeps its key elsewhere, and then computes it later, or if Triton is
    broken, which matters only to code that needs it."""
    try:
        key: Callable[[], str] = importlib.import_module("triton.runtime.cache").triton_key
    except Exception:
        return None
    return key
