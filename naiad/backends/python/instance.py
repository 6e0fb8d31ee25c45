"""The model instance of this worker process.

As in Triton, a process is one instance, so model code logs, creates metrics and calls other models
without naming an instance. PythonBackend calls `install` once per process, and the functions of
`triton_python_backend_utils` use `current`.
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
from naiad.errors import NaiadError, unavailable
from naiad.ipc.work import (
    CallRequest,
    ControlOperation,
    WorkRequest,
    WorkResponse,
)
from naiad.metrics.operation import MetricOperation

AWAITED_HANDLES: ContextVar[list[int] | None] = ContextVar("awaited_handles", default=None)
"""The requests of the current `async def execute`. The tasks that it starts inherit the value."""


class DetachedRuntime:
    """The runtime before the instance is loaded.

    Log messages go to stderr, and every call that needs the server raises NaiadError.
    """

    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        self._reject()

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        self._reject()

    def is_paused(self, handle: int) -> bool:
        return False

    def hold_work(self, is_held: bool) -> None:
        pass

    def is_cancelled(self, handle: int) -> bool:
        return False

    def allocate(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def call(self, request: CallRequest) -> NoReturn:
        self._reject()

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        print(f"{severity[:1]} {file}:{line}] {message}", file=sys.stderr, flush=True)

    def metric(self, operation: MetricOperation) -> float:
        self._reject()

    def control(self, operation: ControlOperation) -> bool:
        self._reject()

    def _reject(self) -> NoReturn:
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
        """True between `initialize` and `finalize`, when the model may call other models."""
        self._batch: list[WorkRequest] | None = None
        self._handles: list[int] = []
        self._thread = 0

    def begin(self, batch: list[WorkRequest]) -> None:
        """Is called when `execute` of this batch starts, in the same thread."""
        self._batch = batch
        self._handles = []
        self._thread = threading.get_ident()

    def end(self) -> None:
        self._batch = None

    def log(self, severity: str, message: str) -> None:
        """Logs a message of the backend about this instance."""
        caller = sys._getframe(1)
        self.runtime.log(
            severity,
            f"model '{self.name}': {message}",
            os.path.basename(caller.f_code.co_filename),
            caller.f_lineno,
        )

    def callers(self) -> list[int]:
        """Returns the handles of the requests that the calling code is executing.

        In threads that the model started, they are unknown and the list is empty.
        """
        awaited = AWAITED_HANDLES.get()
        if awaited is not None:
            return awaited
        if not self.is_executing():
            return []
        if not self._handles and self._batch is not None:
            self._handles = [request.handle for request in self._batch]
        return self._handles

    def is_executing(self) -> bool:
        """Returns True if the caller is in a plain `execute`, in the thread of the worker.

        No other request of the model is executed while the caller waits.
        """
        return self._batch is not None and self._thread == threading.get_ident()


_current = [Instance("", "")]


def install(instance: Instance) -> None:
    _current[0] = instance


def current() -> Instance:
    return _current[0]


def from_finalizer(function: Callable[..., object], *arguments: Any) -> None:
    """Calls `function` in a new thread.

    A finalizer may run in the middle of a call into the runtime, in the thread that holds the
    runtime's locks, so a direct call could deadlock. Objects are rarely dropped unfinished, so the
    cost of the thread does not matter.
    """
    try:
        _thread.start_new_thread(_call, (function, arguments))
    except RuntimeError:
        pass  # the interpreter is shutting down, and the server notices the end of the process


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NaiadError:
        pass  # the server has already forgotten the object
