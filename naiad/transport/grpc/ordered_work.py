"""Work for threads whose results must come back in order: compressing and decompressing the large
messages of one call.

In:  jobs, each with a callback for its result. Out: calls of the callbacks, on the event loop, in
     the order of submission.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from naiad.machine.codec_threads import codec_threads
from naiad.transport.grpc.status import GrpcError


class OrderedWork:
    __slots__ = ("_fail", "_is_running", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[GrpcError], None]) -> None:
        self._loop = loop
        self._fail = fail
        self._waiting: deque[tuple[Callable[[], Any] | None, Callable[[Any], None]]] = deque()
        self._is_running = False

    def submit(
        self, job: Callable[[], Any], deliver: Callable[[Any], None], *, is_small: bool
    ) -> None:
        """Runs a small job at once, unless others are still under way."""
        if is_small and not self._is_running:
            try:
                result = job()
            except GrpcError as error:
                self._fail(error)
            else:
                deliver(result)
            return
        self._waiting.append((job, deliver))
        self._start_next()

    def then(self, callback: Callable[[Any], None]) -> None:
        """Calls `callback` with None after everything that was submitted before."""
        if self._is_running:
            self._waiting.append((None, callback))
        else:
            callback(None)

    def cancel(self) -> None:
        """Jobs that have not started never will. The result of a running job is dropped."""
        self._waiting.clear()

    def _start_next(self) -> None:
        while self._waiting and not self._is_running:
            job, deliver = self._waiting.popleft()
            if job is None:
                deliver(None)
                continue
            self._is_running = True
            future = self._loop.run_in_executor(codec_threads(), job)
            future.add_done_callback(partial(self._finish, deliver))

    def _finish(self, deliver: Callable[[Any], None], done: asyncio.Future[Any]) -> None:
        self._is_running = False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, GrpcError):
            self._waiting.clear()
            self._fail(error)
        elif error is not None:
            raise error
        else:
            deliver(done.result())
        self._start_next()
