"""The thread that opens a language model and then runs its engine, and how it shares time with
requests that arrive and with the worker's work loop.

Rule: everything that computes runs on one EngineThread. Libraries keep a pool of threads for each
      thread that computes; two pools on the same cores stop each other from spinning, and every
      parallel section then waits for the kernel (measured: a quarter of a step on two cores).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from naiad.backends.backend import Runtime

Result = TypeVar("Result")

PART_OF_STEP = 0.25
"""Fraction of a step that an idle engine waits for further requests."""
MAX_WAIT_S = 0.01


class EngineThread:
    def __init__(self) -> None:
        self._work: SimpleQueue[
            tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]] | None
        ] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="llm-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result]) -> Result:
        """Runs `function` on the thread and waits for it. Raises what `function` raises."""
        outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._work.put((function, outcome))
        value, error = outcome.get()
        if error is not None:
            raise error
        result: Result = value
        return result

    def start(self, function: Callable[[], None]) -> None:
        """Runs `function`, which must not raise, as the last work of the thread. Does not wait."""
        self._work.put((function, SimpleQueue()))
        self._work.put(None)

    def end(self) -> None:
        """Ends a thread that has nothing to start."""
        self._work.put(None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            function, outcome = work
            try:
                outcome.put((function(), None))
            except BaseException as error:
                outcome.put((None, error))


class LaunchGate:
    """Keeps the work loop from asking for the interpreter while a step is launched.

    A launch releases the interpreter at every kernel, hundreds of times. A thread that waits for
    the interpreter is woken each time, mostly without effect, and each wake-up costs the launching
    thread more than the kernel's launch: the device runs out of work, and every stream waits. The
    work loop can do its work while the device computes, so its messages stay in the channel, and
    what it has already read waits here.
    Rule: only the engine's thread closes and opens the gate.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        self._runtime.hold_work(True)
        self._lock.acquire()
        self._is_closed = True

    def open(self) -> None:
        """Has no effect if the gate is open."""
        if self._is_closed:
            self._is_closed = False
            self._lock.release()
            self._runtime.hold_work(False)

    def wait(self) -> None:
        if self._is_closed:
            with self._lock:
                pass


class ArrivalWindow:
    """Decides how long an idle engine waits for requests that arrive together with the first one.

    If a step begins with only the first of several requests, the others wait for the whole step
    and all of them end a step later.
    Rule: a request that arrives alone after others that arrived alone never waits; other requests
          wait for a part of a step at most.
    """

    def __init__(self) -> None:
        self._step_s = 0.0
        self._num_together = 0
        self._most_together = 0
        """Largest number of open requests in the previous busy period."""

    def record_step(self, duration_s: float, num_open: int) -> None:
        self._step_s = duration_s
        self._num_together = max(self._num_together, num_open)

    def end_busy_period(self) -> None:
        if self._num_together:
            self._most_together, self._num_together = self._num_together, 0

    @property
    def num_expected(self) -> int:
        return self._most_together

    @property
    def wait_s(self) -> float:
        return min(MAX_WAIT_S, self._step_s * PART_OF_STEP) if self._most_together > 1 else 0.0
