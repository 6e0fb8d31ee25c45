"""`Backend`, the class that every backend inherits from, and `Runtime`, what its worker offers it.

A backend lives in a worker process, one per instance, and never sees the server. A backend must
define `load` and `execute`; every other attribute and method of `Backend` has a default. `Runtime`
may be called from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Protocol

from naiad.ipc.completion_request import Example
from naiad.ipc.work import (
    CallRequest,
    ControlOperation,
    LoadArguments,
    WorkRequest,
    WorkResponse,
)
from naiad.metrics.operation import MetricOperation


class Call(Protocol):
    """A running BLS call."""

    def next(self) -> tuple[WorkResponse | None, bool]:
        """Blocks for the next event: (response, is_final). Never called again after is_final."""
        ...

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        """Does the same on an event loop: the worker's, or one that the model started."""
        ...

    def cancel(self) -> None: ...


class Runtime(Protocol):
    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        """Sends one response at once. After is_final the handle is gone; later responses are
        dropped."""
        ...

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        """Does the same for several requests, in one message. It never waits for slow readers; see
        `is_paused`."""
        ...

    def is_paused(self, handle: int) -> bool:
        """The reader of the responses cannot keep up; the backend should send less until it can."""
        ...

    def hold_work(self, is_held: bool) -> None:
        """While work is held, messages of the server do not wake the worker, so that one thread has
        the interpreter to itself.

        Only for workers with an event loop. Nothing that waits for a reply may be called meanwhile.
        """
        ...

    def is_cancelled(self, handle: int) -> bool: ...

    def allocate(self, num_bytes: int) -> memoryview:
        """Returns memory that the server can read: an output in it is sent without a copy. The
        memory is not cleared, and it is freed with its last view."""
        ...

    def call(self, request: CallRequest) -> Call:
        """Starts a BLS call and sets its handle."""
        ...

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        """`severity`: INFO, WARNING, ERROR or VERBOSE."""
        ...

    def metric(self, operation: MetricOperation) -> float:
        """Returns a handle for a creation and a value for `value`. Changes return 0 and do not wait
        for the server. Raises NaiadError."""
        ...

    def control(self, operation: ControlOperation) -> bool:
        """Blocks until the server has done it. The result matters only for is_model_ready. Raises
        NaiadError."""
        ...


class Backend(ABC):
    is_async: bool = False
    """The worker runs `execute` on an event loop and starts further batches while earlier ones are
    under way. Read after `load`."""
    has_ready_hook: bool = False
    """The model itself says whether it is ready. Read after `load`."""

    @classmethod  # noqa: B027 - most backends have nothing to import
    def import_ahead(cls, arguments: LoadArguments) -> None:
        """Imports what this model will import, in a template from which only its instances are
        forked. The model's own code must not run here. An exception, a thread or an open file that
        is left behind makes the server fork the instances from the backend's own template."""

    def complete_config(self, arguments: LoadArguments) -> bytes:
        """Completes the config from the model's own files, before `load`. `arguments.model_config`
        is what the config says so far; the result is JSON, too."""
        return arguments.model_config

    def complete_by_example(self, arguments: LoadArguments, examples: list[Example]) -> bytes:
        """Completes the config of a model whose files do not tell its shapes, by running it with
        the inputs that `naiad check --write` was given."""
        return self.complete_config(arguments)

    @abstractmethod
    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        """Loads the model. An exception fails the load, and its message is shown to whoever asked
        for it."""

    def facts(self) -> dict[str, str]:
        """Returns what the model found out while it loaded, such as the kernels that it uses. The
        server shows it as parameters of the model's config. Called after `load`."""
        return {}

    @abstractmethod
    def execute(
        self, requests: list[WorkRequest]
    ) -> list[WorkResponse | None] | Awaitable[list[WorkResponse | None]]:
        """Returns one entry per request, in order: its response, or None where `Runtime.respond`
        sends the responses.

        An awaitable (with `is_async`) lets the worker start further batches meanwhile. An exception
        fails every request of the batch that has had no response.
        """

    def is_ready(self) -> bool:
        """Whether the model is fit to serve. Called when a client asks, in a thread of its own,
        also while `execute` runs; never twice at once. An exception means that it is not."""
        return True

    async def is_ready_async(self) -> bool:
        """What a backend with `is_async` is asked instead, on its event loop."""
        return self.is_ready()

    def unload(self) -> None:  # noqa: B027 - most backends have nothing to do
        """The model is unloaded; the process ends afterwards."""
