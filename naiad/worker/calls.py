"""The worker's side of BLS: a model's calls -> the server, or straight to the worker of a borrowed
instance (naiad.instances.lease).

A call is direct when one of the same form went through the server, the server lent an instance for
it, and nobody has recalled that.
Rule: the server is told of direct calls before the answers that they led to, so whoever has those
      finds the calls in the statistics.
"""

from __future__ import annotations

import asyncio
import itertools
import threading

from naiad.ipc.messages import Borrow, CallEvent, DirectCalls, StartCall
from naiad.ipc.work import (
    CallRequest,
    DirectCall,
    WorkRequest,
    WorkResponse,
)
from naiad.worker.channel import WorkerChannel
from naiad.worker.direct_calls import BorrowedInstance, Form, LentInstance, form_of
from naiad.worker.running_call import DoneCall, RunningCall

MAX_UNTOLD_CALLS = 64
"""Calls from worker to worker, before the server is told of them in the midst of a batch."""
MAX_UNFIT_FORMS = 256


class WorkerCalls:
    def __init__(self, channel: WorkerChannel, lent: dict[int, LentInstance]) -> None:
        """`lent`: by lease, the requests of other workers that this one works on."""
        self.channel = channel
        self.loop: asyncio.AbstractEventLoop | None = None
        """Of a worker that has one."""
        self._lent = lent
        self._running: dict[int, RunningCall] = {}
        self._numbers = itertools.count(1)
        self._form: tuple[int, Form] | None = None
        """The last call through the server whose form may be called directly, if the server says
        so; and that form."""
        self._borrowed: dict[Form, BorrowedInstance] = {}
        self._unfit: set[Form] = set()
        """Forms whose answers are too large to come directly."""
        self.untold: list[DirectCall] = []
        """Emptied, never replaced."""
        self._lock = threading.Lock()

    def call(self, request: CallRequest) -> RunningCall | DoneCall:
        form = form_of(request) if request.is_repeatable else None
        if form is None:
            request.is_repeatable = False
        elif form in self._borrowed:
            answered = self._ask_directly(form, request.request)
            if answered is not None:
                return DoneCall(answered)
        elif form in self._unfit:
            request.is_repeatable, form = False, None
        if not request.callers and self._lent:
            # a thread of the model's own: taken to be what the request waits for
            request.callers = list(self._lent)
        with self._lock:
            number = next(self._numbers)
        if form is not None:
            self._form = number, form
        request.request.handle = number
        call = self._running[number] = RunningCall(self, number)
        self.channel.send(StartCall(request), request.request.inputs)
        return call

    def take_event(self, message: CallEvent) -> None:
        call = self._running.get(message.call)
        if message.is_final:
            self._running.pop(message.call, None)
        if call is not None:
            call.deliver(message.response, message.is_final)

    # Past the server.

    def _ask_directly(self, form: Form, request: WorkRequest) -> WorkResponse | None:
        borrowed = self._borrowed[form]
        answered = borrowed.ask(request)
        if borrowed.is_unfit:
            del self._borrowed[form]
            borrowed.close()
            if len(self._unfit) < MAX_UNFIT_FORMS:
                self._unfit.add(form)
        if answered is None:
            self._drop_borrowed()
            return None
        response, call = answered
        self.untold.append(call)
        if len(self.untold) >= MAX_UNTOLD_CALLS:
            self.tell()
        return response

    def take_borrowed(self, message: Borrow) -> None:
        """The call that it came of is still waited for, so nothing is being asked meanwhile."""
        borrowed = BorrowedInstance(
            message.lease, message.instance_name, self.channel.borrowed_fds.pop(message.lease)
        )
        self._drop_borrowed()
        if self._form is None or self._form[0] != message.call:
            borrowed.close()  # the lender is told by that
            return
        earlier = self._borrowed.pop(self._form[1], None)
        if earlier is not None:
            earlier.close()
        self._borrowed[self._form[1]] = borrowed

    def _drop_borrowed(self) -> None:
        """Those that have been given back meanwhile."""
        for form, borrowed in list(self._borrowed.items()):
            if borrowed.is_over():
                borrowed.close()
                del self._borrowed[form]

    def tell(self) -> None:
        with self._lock:
            calls = self.untold[:]
            del self.untold[: len(calls)]
        if calls:
            self.channel.send(DirectCalls(calls))
