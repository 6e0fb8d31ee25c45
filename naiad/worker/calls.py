"""The worker's side of BLS: a model's calls -> the server, or directly to the worker of a borrowed
instance (naiad.instances.lease).

A call goes directly when a call with the same signature went through the server, the server lent an
instance for it, and has not recalled the instance.
Rule: direct calls are reported to the server before the responses that they led to, so a client
      that has a response finds the calls in the statistics.
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
from naiad.worker.direct_calls import BorrowedInstance, LentInstance, Signature, signature_of
from naiad.worker.running_call import DoneCall, RunningCall

MAX_UNREPORTED_CALLS = 64
"""Direct calls that are reported to the server together, at the latest when the batch ends."""
MAX_UNFIT_SIGNATURES = 256


class WorkerCalls:
    def __init__(self, channel: WorkerChannel, lent: dict[int, LentInstance]) -> None:
        """`lent`: by lease, the direct requests that this worker executes for others."""
        self.channel = channel
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of a worker that has one."""
        self._lent = lent
        self._running: dict[int, RunningCall] = {}
        self._numbers = itertools.count(1)
        self._last_repeatable: tuple[int, Signature] | None = None
        """The number and signature of the last call through the server whose like may go
        directly."""
        self._borrowed: dict[Signature, BorrowedInstance] = {}
        self._unfit: set[Signature] = set()
        """Signatures whose responses are too large to come directly."""
        self.unreported: list[DirectCall] = []
        self._lock = threading.Lock()

    def call(self, request: CallRequest) -> RunningCall | DoneCall:
        signature = signature_of(request) if request.is_repeatable else None
        if signature is None:
            request.is_repeatable = False
        elif signature in self._borrowed:
            response = self._call_directly(signature, request.request)
            if response is not None:
                return DoneCall(response)
        elif signature in self._unfit:
            request.is_repeatable, signature = False, None
        if not request.callers and self._lent:
            # The call comes from a thread that the model started. The direct request is assumed to
            # wait for it.
            request.callers = list(self._lent)
        with self._lock:
            number = next(self._numbers)
        if signature is not None:
            self._last_repeatable = number, signature
        request.request.handle = number
        call = self._running[number] = RunningCall(self, number)
        self.channel.send(StartCall(request), request.request.inputs)
        return call

    def on_call_event(self, message: CallEvent) -> None:
        call = self._running.get(message.call)
        if message.is_final:
            self._running.pop(message.call, None)
        if call is not None:
            call.deliver(message.response, message.is_final)

    # Direct calls.

    def _call_directly(self, signature: Signature, request: WorkRequest) -> WorkResponse | None:
        borrowed = self._borrowed[signature]
        result = borrowed.call(request)
        if borrowed.is_unfit:
            del self._borrowed[signature]
            borrowed.close()
            if len(self._unfit) < MAX_UNFIT_SIGNATURES:
                self._unfit.add(signature)
        if result is None:
            self._drop_recalled()
            return None
        response, call = result
        self.unreported.append(call)
        if len(self.unreported) >= MAX_UNREPORTED_CALLS:
            self.report()
        return response

    def on_borrow(self, message: Borrow) -> None:
        """The model still waits for the call that led to the loan, so no direct call is under way
        now."""
        borrowed = BorrowedInstance(
            message.lease, message.instance_name, self.channel.borrowed_fds.pop(message.lease)
        )
        self._drop_recalled()
        last = self._last_repeatable
        if last is None or last[0] != message.call:
            borrowed.close()  # which ends the lease
            return
        earlier = self._borrowed.pop(last[1], None)
        if earlier is not None:
            earlier.close()
        self._borrowed[last[1]] = borrowed

    def _drop_recalled(self) -> None:
        """Forgets borrowed instances that have been recalled meanwhile."""
        for signature, borrowed in list(self._borrowed.items()):
            if borrowed.is_over():
                borrowed.close()
                del self._borrowed[signature]

    def report(self) -> None:
        """Tells the server about direct calls."""
        with self._lock:
            calls = self.unreported[:]
            del self.unreported[: len(calls)]
        if calls:
            self.channel.send(DirectCalls(calls))
