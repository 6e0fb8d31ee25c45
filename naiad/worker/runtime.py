"""What a worker offers its backend (naiad.backends.backend.Runtime): it sends responses, knows
which requests are cancelled, and asks the server.

Any thread may call it. BLS is in naiad.worker.calls.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

from naiad.errors import Code, NaiadError
from naiad.ipc.messages import (
    Borrow,
    CallEvent,
    Cancel,
    Control,
    Flow,
    LogLine,
    Metric,
    Reply,
    Response,
    ResponseGroup,
)
from naiad.ipc.work import (
    CallRequest,
    ControlOperation,
    WorkError,
    WorkResponse,
)
from naiad.metrics.operation import MetricOperation
from naiad.worker.calls import WorkerCalls
from naiad.worker.channel import Event, WorkerChannel, all_inline
from naiad.worker.direct_calls import LentInstance
from naiad.worker.running_call import DoneCall, RunningCall


class WorkerRuntime:
    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        channel.attach(self)
        self.open: set[int] = set()
        """The handles of requests that have had no final response."""
        self._cancelled: set[int] = set()
        self._paused: set[int] = set()
        self.lent: dict[int, LentInstance] = {}
        """Direct requests of other workers, keyed by lease (naiad.instances.lease)."""
        self.calls = WorkerCalls(channel, self.lent)
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    # Responses.

    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        if handle in self._paused:
            # The reader cannot keep up: the model waits here, so that responses do not pile up.
            self._channel.wait_until(lambda: handle not in self._paused)
        if handle not in self.open:
            return
        if handle in self.lent:
            self._respond_direct(handle, response, is_final)
            return
        if self.calls.unreported:
            self.calls.report()
        if is_final:
            self.close(handle)
        self._send(Response(handle, response, is_final))

    def _send(self, message: Response) -> None:
        """A response for which there is no shared memory becomes an error."""
        response = message.response
        try:
            self._channel.send(message, response.outputs if response is not None else None)
        except NaiadError as error:
            self._channel.send(
                Response(message.handle, WorkResponse(error=WorkError.of(error)), message.is_final)
            )

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        items: list[Response] = []
        for handle, response, is_final in responses:
            if handle in self.lent:
                self._respond_direct(handle, response, is_final)
            elif handle in self.open:
                if is_final:
                    self.close(handle)
                items.append(Response(handle, response, is_final))
        if items:
            outputs = [item.response.outputs for item in items if item.response is not None]
            try:
                self._channel.send_many(ResponseGroup(items, all_inline(outputs)), outputs)
            except NaiadError as error:
                failed = WorkResponse(error=WorkError.of(error))
                self._channel.send(
                    ResponseGroup([Response(item.handle, failed, item.is_final) for item in items])
                )

    def _respond_direct(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        lent = self.lent[handle]
        if response is not None:
            lent.held = response
        if is_final:
            held, lent.held = lent.held, None
            self.end_direct(handle, held)

    def end_direct(self, handle: int, response: WorkResponse | None) -> None:
        """Sends the response to a direct request."""
        lent = self.lent.pop(handle)
        self.close(handle)
        lent.respond(response, time.monotonic_ns())

    def close(self, handle: int) -> None:
        self.open.discard(handle)
        if self._cancelled:
            self._cancelled.discard(handle)
        if self._paused:
            self._paused.discard(handle)

    def is_paused(self, handle: int) -> bool:
        return handle in self._paused

    def is_cancelled(self, handle: int) -> bool:
        if handle not in self._cancelled and handle in self.open:
            self._channel.poll()
        return handle in self._cancelled

    def hold_work(self, is_held: bool) -> None:
        self._channel.hold(is_held)

    def allocate(self, num_bytes: int) -> memoryview:
        return self._channel.link.arena.allocate(num_bytes)

    # What the backend asks of the server.

    def call(self, request: CallRequest) -> RunningCall | DoneCall:
        return self.calls.call(request)

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        if not line:
            # The caller's place; a model's own place comes with the call.
            code, line = sys._getframe(1).f_code, sys._getframe(1).f_lineno
            file = os.path.basename(code.co_filename)
        self._channel.send(LogLine(severity, message, file, line))

    def metric(self, operation: MetricOperation) -> float:
        if operation.kind in (
            "increment",
            "set",
            "observe",
            "merge",
            "delete_family",
            "delete_metric",
        ):
            self._channel.send(Metric(0, operation))
            return 0.0
        number = self._next_number()
        self._channel.send(Metric(number, operation))
        return self._wait_for_reply(number)

    def control(self, operation: ControlOperation) -> bool:
        number = self._next_number()
        self._channel.send(Control(number, operation))
        return bool(self._wait_for_reply(number))

    def _next_number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def _wait_for_reply(self, number: int) -> float:
        self._channel.wait_until(lambda: number in self._replies)
        reply = self._replies.pop(number)
        if reply.error is not None:
            raise NaiadError(Code[reply.error.code], reply.error.message)
        return reply.value

    def on_event(self, message: Event) -> None:
        match message:
            case Cancel():
                self._cancelled.update(handle for handle in message.handles if handle in self.open)
                self._paused.difference_update(message.handles)
            case Flow():
                if not message.is_paused:
                    self._paused.discard(message.handle)
                elif message.handle in self.open and message.handle not in self._cancelled:
                    self._paused.add(message.handle)
            case CallEvent():
                self.calls.on_call_event(message)
            case Reply():
                self._replies[message.question] = message
            case Borrow():
                self.calls.on_borrow(message)
