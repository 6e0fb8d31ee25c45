"""A `Runtime` without a server: it records calls, and responds to BLS calls from a script."""

from __future__ import annotations

import threading
from collections.abc import Callable

from naiad.errors import NaiadError
from naiad.ipc.work import CallRequest, ControlOperation, WorkResponse
from naiad.metrics.operation import MetricOperation

WAIT_S = 60.0
Events = list[tuple[WorkResponse | None, bool]]


class FakeCall:
    def __init__(self, events: Events) -> None:
        self.events = list(events)
        self.is_cancelled = False
        self.cancelled = threading.Event()

    def next(self) -> tuple[WorkResponse | None, bool]:
        return self.events.pop(0)

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        return self.events.pop(0)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.cancelled.set()


class FakeRuntime:
    def __init__(self) -> None:
        self.responses: dict[int, Events] = {}
        self.cancelled: set[int] = set()
        self.allocated: list[int] = []
        self.logged: list[tuple[str, str, str, int]] = []
        self.called: list[CallRequest] = []
        self.calls: list[FakeCall] = []
        self.answer_call: Callable[[CallRequest], Events] = lambda request: [(WorkResponse(), True)]
        self.metrics: list[MetricOperation] = []
        self.metric_value = 0.0
        self.controls: list[ControlOperation] = []
        self.is_model_ready = True
        self.rejection: NaiadError | None = None
        self._changed = threading.Condition()

    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        with self._changed:
            self.responses.setdefault(handle, []).append((response, is_final))
            self._changed.notify_all()

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        for handle, response, is_final in responses:
            self.respond(handle, response, is_final)

    def is_paused(self, handle: int) -> bool:
        return False

    def hold_work(self, is_held: bool) -> None:
        pass

    def is_cancelled(self, handle: int) -> bool:
        return handle in self.cancelled

    def allocate(self, num_bytes: int) -> memoryview:
        self.allocated.append(num_bytes)
        return memoryview(bytearray(num_bytes))

    def call(self, request: CallRequest) -> FakeCall:
        self._refuse()
        self.called.append(request)
        call = FakeCall(self.answer_call(request))
        self.calls.append(call)
        return call

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        with self._changed:
            self.logged.append((severity, message, file, line))
            self._changed.notify_all()

    def metric(self, operation: MetricOperation) -> float:
        self._refuse()
        with self._changed:
            self.metrics.append(operation)
            self._changed.notify_all()
        return self.metric_value if operation.kind == "value" else float(len(self.metrics))

    def control(self, operation: ControlOperation) -> bool:
        self._refuse()
        self.controls.append(operation)
        return self.is_model_ready

    def _refuse(self) -> None:
        if self.rejection is not None:
            raise self.rejection

    # For tests.

    def ended(self, handle: int) -> Events:
        """Waits for the final event of a request, and returns all its events."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(is_final for _, is_final in self.responses.get(handle, [])), WAIT_S
            )
            return self.responses[handle]

    def metric_of_kind(self, kind: str) -> MetricOperation:
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(operation.kind == kind for operation in self.metrics), WAIT_S
            )
            return next(operation for operation in self.metrics if operation.kind == kind)
