"""Keeps the work loop from asking for the interpreter while the engine's thread launches a step.

Launching lets go of the interpreter at every kernel, hundreds of times. A thread that waits for it
is woken each time, mostly in vain, and each time that costs the launching thread more than the
kernel's launch: the device runs out of work, and every stream waits. What the work loop has to do
can as well be done while the device works. So its messages stay in the channel, and what it has
read already waits here.
Rule: the engine's thread closes and opens.
"""

from __future__ import annotations

import threading

from naiad.backends.backend import Runtime


class LaunchGate:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        self._runtime.hold_work(True)
        self._lock.acquire()
        self._is_closed = True

    def open(self) -> None:
        """Also when it is open already."""
        if self._is_closed:
            self._is_closed = False
            self._lock.release()
            self._runtime.hold_work(False)

    def wait(self) -> None:
        if self._is_closed:
            with self._lock:
                pass
