"""The model instance that this worker process is: what the static parts of
`triton_python_backend_utils` act on.

Model code logs, builds metrics and calls other models without naming an instance, because under
Triton a process is one instance. Here too: `install` is called once per process, by PythonBackend,
and everything else asks `current`.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

from naiad.backends.backend import Runtime
from naiad.backends.python.reshape import Reshapes
from naiad.core.work import (
    CallRequest,
    ControlOperation,
    MetricOperation,
    WorkRequest,
    WorkResponse,
)
from naiad.errors import NaiadError, unavailable

AWAITED_HANDLES: ContextVar[list[int] | None] = ContextVar("awaited_handles", default=None)
"""The requests that the coroutine of an `async def execute` works on, and the tasks that it
starts."""


class DetachedRuntime:
    """Stands in until the instance is loaded: messages go to stderr, anything that needs the server
    is refused."""

    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        self._refuse()

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        self._refuse()

    def is_paused(self, handle: int) -> bool:
        return False

    def hold_work(self, is_held: bool) -> None:
        pass

    def is_cancelled(self, handle: int) -> bool:
        return False

    def allocate(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def call(self, request: CallRequest) -> NoReturn:
        self._refuse()

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        print(f"{severity[:1]} {file}:{line}] {message}", file=sys.stderr, flush=True)

    def metric(self, operation: MetricOperation) -> float:
        self._refuse()

    def control(self, operation: ControlOperation) -> bool:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise unavailable("the model instance is not loaded")


class Instance:
    __slots__ = (
        "_batch",
        "_handles",
        "_thread",
        "is_decoupled",
        "is_serving",
        "name",
        "output_names",
        "reshapes",
        "runtime",
        "version_dir",
    )

    def __init__(
        self,
        name: str,
        version_dir: str,
        runtime: Runtime | None = None,
        is_decoupled: bool = False,
        output_names: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.version_dir = version_dir
        self.runtime: Runtime = runtime or DetachedRuntime()
        self.is_decoupled = is_decoupled
        self.output_names = output_names
        self.reshapes: Reshapes | None = None
        self.is_serving = False
        """Between `initialize` and `finalize`: only then may the model call other models."""
        self._batch: list[WorkRequest] | None = None
        self._handles: list[int] = []
        self._thread = 0

    def begin(self, batch: list[WorkRequest]) -> None:
        """`batch` runs in this thread until `end`."""
        self._batch = batch
        self._handles = []
        self._thread = threading.get_ident()

    def end(self) -> None:
        self._batch = None

    def log(self, severity: str, message: str) -> None:
        """A message of the backend itself, about this instance."""
        caller = sys._getframe(1)
        self.runtime.log(
            severity,
            f"model '{self.name}': {message}",
            os.path.basename(caller.f_code.co_filename),
            caller.f_lineno,
        )

    def callers(self) -> list[int]:
        """The requests that the calling code works on; unknown, so empty, in threads of the model's
        own."""
        awaited = AWAITED_HANDLES.get()
        if awaited is not None:
            return awaited
        if not self.is_executing():
            return []
        if not self._handles and self._batch is not None:
            self._handles = [request.handle for request in self._batch]
        return self._handles

    def is_executing(self) -> bool:
        """The calling code is in a plain `execute`, and no other code of the model runs while it
        waits there."""
        return self._batch is not None and self._thread == threading.get_ident()


_current = [Instance("", "")]


def install(instance: Instance) -> None:
    _current[0] = instance


def current() -> Instance:
    return _current[0]


def from_finalizer(function: Callable[..., object], *arguments: Any) -> None:
    """Calls `function` in a thread of its own.

    A finalizer may run in the midst of a call into the runtime, on the thread that holds the
    runtime's locks: calling it there could wait for itself. Dropping such an object unfinished is
    rare, so the thread's price does not matter.
    """
    try:
        _thread.start_new_thread(_call, (function, arguments))
    except (
        RuntimeError
    ):  # the interpreter is shutting down: the process ends, and the server sees that
        pass


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NaiadError:  # the server has no such thing any more: nothing is left to clean up
        pass
