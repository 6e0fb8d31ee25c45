"""The interface of a backend, complete with three methods, and what the worker around it offers in
return.

A backend lives in a worker process, one per instance, and never sees the server. `Runtime` may be
called from any thread.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from naiad.core.work import (
    CallRequest,
    ControlOperation,
    LoadArguments,
    MetricOperation,
    WorkRequest,
    WorkResponse,
)


class Call(Protocol):
    """A running BLS call."""

    def next(self) -> tuple[WorkResponse | None, bool]:
        """Blocks for the next event: (response, is_final). Never called again after is_final."""
        ...

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        """The same for callers on an event loop of their own or the worker's."""
        ...

    def cancel(self) -> None: ...


class Runtime(Protocol):
    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        """Sends one response at once. After is_final the handle is gone; later responses are
        dropped."""
        ...

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        """The same for several requests, in one message. Never waits for slow readers: see
        `is_paused`."""
        ...

    def is_paused(self, handle: int) -> bool:
        """Whoever reads the responses cannot keep up: it is better to send less until they can."""
        ...

    def hold_work(self, is_held: bool) -> None:
        """Messages of the server wait until it is let go again: for moments in which one thread is
        to have the interpreter for itself.

        Only in workers with an event loop; nothing that waits for an answer may be called
        meanwhile.
        """
        ...

    def is_cancelled(self, handle: int) -> bool: ...

    def allocate(self, num_bytes: int) -> memoryview:
        """Memory that the server can read: an output that lies in it is sent without a copy. Not
        cleared; freed with its last view."""
        ...

    def call(self, request: CallRequest) -> Call:
        """Starts a BLS call; its handle is filled in here."""
        ...

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        """`severity`: INFO, WARNING, ERROR or VERBOSE."""
        ...

    def metric(self, operation: MetricOperation) -> float:
        """Creation answers a handle, `value` a value; changes answer 0 and do not wait. Raises
        NaiadError."""
        ...

    def control(self, operation: ControlOperation) -> bool:
        """Blocks until the server has done it. Raises NaiadError; only is_model_ready has an answer
        worth reading."""
        ...


class Backend(Protocol):
    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        """Raises to fail the load; the message is shown to whoever asked for it."""
        ...

    def execute(
        self, requests: list[WorkRequest]
    ) -> list[WorkResponse | None] | Awaitable[list[WorkResponse | None]]:
        """One entry per request, in order; None where `Runtime.respond` has given or will give the
        answers.

        An awaitable lets the worker take further batches meanwhile. Raising fails every request of
        the batch that has no answer yet.
        """
        ...

    def unload(self) -> None: ...


class ConfiguringBackend(Backend, Protocol):
    """A backend that can complete a ModelConfig from the model itself, before `load`."""

    def complete_config(self, arguments: LoadArguments) -> bytes:
        """The completed config as JSON; `arguments.model_config` is what is known so far."""
        ...
