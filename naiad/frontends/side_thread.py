"""A thread for decoding and encoding that would hold the event loop for too long.

In:  a function without side effects, from the event loop. Out: its result or its error, back on the
     event loop, in the order in which the functions were given.
Rule: one thread only. A function that computes in Python makes the loop wait for the interpreter
      lock now and then; several such threads would make it wait in turn. Functions must work in
      small steps, because the lock is held during each call into C.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from naiad import log
from naiad.errors import NaiadError, internal

T = TypeVar("T")
OnError: TypeAlias = Callable[[Exception], None]

_ASK_LIMIT_S = 10.0
INLINE_JSON_BYTES = 64 * 1024
"""The event loop itself decodes JSON up to this size into types."""
INLINE_PLAIN_BYTES = 8 * 1024
"""The event loop itself reads JSON of unknown structure up to this size."""
INLINE_STRING_BYTES = 64 * 1024
"""The event loop itself counts the elements of BYTES tensors up to this size."""
INLINE_COPY_BYTES = 4 * 1024 * 1024
"""The event loop itself copies decompressed tensors up to this size to the workers' memory. What
was not compressed is received there."""
INLINE_VALUE_BYTES = 64 * 1024
"""The event loop itself writes tensors up to this size as JSON."""


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    work: Callable[[], Any]
    on_result: Callable[[Any], None]
    on_error: OnError


class SideThread:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def run(self, work: Callable[[], T], on_result: Callable[[T], None], on_error: OnError) -> None:
        """`on_error` gets what `work` raises. After `stop` neither callback is called."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="naiad-codec", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        self._jobs.put(_Job(loop, work, on_result, on_error))

    def ask(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[int], T], argument: int
    ) -> T | None:
        """Called by work in the thread: runs the function on the event loop and waits for its
        result. Returns None when the loop does not respond any more."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def respond() -> None:
            try:
                result.set_result(function(argument))
            except Exception as error:
                result.set_exception(error)

        try:
            loop.call_soon_threadsafe(respond)
            return result.result(_ASK_LIMIT_S)
        except (RuntimeError, TimeoutError):
            return None

    def stop(self) -> None:
        """Returns at once. What is under way is dropped."""
        self._is_stopped = True
        self._jobs.put(None)

    def join(self, limit_s: float) -> None:
        """Waits until the thread has ended, after `stop`."""
        if self._thread is not None:
            self._thread.join(limit_s)

    def _run(self) -> None:
        # Nothing here refers to a request, which may be large, once its result is delivered.
        while (job := self._jobs.get()) is not None:
            loop, deliver = job.loop, [self._do(job)]
            del job
            try:
                loop.call_soon_threadsafe(self._deliver, deliver)
            except RuntimeError:  # the loop has ended
                self._is_stopped = True

    def _do(self, job: _Job) -> Callable[[], None] | None:
        """Returns what the event loop must do next."""
        if self._is_stopped:
            return None
        try:
            return partial(job.on_result, job.work())
        except Exception as error:
            error.__traceback__ = None  # it would keep the frames, and the request with them
            return partial(job.on_error, error)

    def _deliver(self, box: list[Callable[[], None] | None]) -> None:
        deliver = box.pop()
        if self._is_stopped or deliver is None:
            return
        try:
            deliver()
        except Exception:
            log.error(f"a request could not be continued: {traceback.format_exc()}")


def client_error(error: Exception, what: str) -> NaiadError:
    """The error that the client sees: the codec's own, or for one that no codec should raise
    `internal error`, with a line in the log."""
    if isinstance(error, NaiadError):
        return error
    log.error(f"{what}: {error!r}")
    return internal("internal error")
