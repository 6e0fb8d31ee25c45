"""Keeps the work loop from taking the interpreter while the engine's thread launches a step.

Launching lets go of the interpreter at every kernel, hundreds of times; a thread that has work then takes it each time, the kernels come
slower than the device computes them, and every stream waits. What the work loop has to do can as well be done while the device works.
Rule: the engine's thread closes and opens; whoever else is about to do much in Python waits first.
"""

from __future__ import annotations

import threading


class LaunchGate:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        self._lock.acquire()
        self._is_closed = True

    def open(self) -> None:
        """Also when it is open already."""
        if self._is_closed:
            self._is_closed = False
            self._lock.release()

    def wait(self) -> None:
        if self._is_closed:
            with self._lock:
                pass
