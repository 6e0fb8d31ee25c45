"""A lease: an instance is lent to the model that keeps calling it, and the calls go from worker to
worker without passing the server.

The server lends an instance (naiad.instances.calls) when a model has made blocking calls with the
same signature often enough and nobody else waits for the instance. It recalls the instance as soon
as somebody does. While it is lent, the instance counts as busy. After the recall no direct call can
be sent; the lender's worker finishes what had been sent, and says so. Until then other requests
wait, as they would for any busy instance, even when the worker was stopped during a call. A model
with a limit on execution time is never lent, so the limit always holds.
Invariant: an instance that lends does not borrow, and one that borrows does not lend, so no circle
           of calls is hidden from the server.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.errors import Code
from naiad.ipc.work import DirectCall

LEND_AFTER = 8
"""How many calls one model makes to another before an instance is lent. The number doubles each
time a lease is recalled before it has paid off."""
MAX_LEND_AFTER = 4096
IDLE_HEARTBEATS = 5
"""A lease that is not used for this many heartbeats is recalled: the server checks the health of an
instance more closely while it is not lent."""
WORTHWHILE = 8
"""A lease has paid off once it has served this multiple of the calls that were needed to get it."""
FIRST_NUMBER = 1 << 40
"""Leases share a number space with the handles of an instance's requests, which start at 1."""


class LeaseNumbers:
    """Numbers the leases of one server, so that no two of them share a number."""

    def __init__(self) -> None:
        self._next = FIRST_NUMBER

    def next(self) -> int:
        self._next += 1
        return self._next


class Borrower(Protocol):
    """The calls of the instance that borrows (naiad.instances.calls.Calls)."""

    @property
    def has_borrowed(self) -> bool: ...

    @property
    def is_at_rest(self) -> bool:
        """The borrowing instance executes nothing, so no direct call can be under way."""
        ...

    def on_lease_end(self, lease: Lease) -> None:
        """The lender has its instance back."""
        ...


class Lease:
    __slots__ = (
        "_num_idle",
        "_seen_calls",
        "_sock",
        "batch_size",
        "borrower",
        "id",
        "is_recalled",
        "is_wanted",
        "job",
        "model_name",
        "num_calls",
        "statistics",
    )

    def __init__(
        self,
        id: int,
        model_name: str,
        sock: socket.socket,
        statistics: ModelStatistics,
        batch_size: int,
        borrower: Borrower,
    ) -> None:
        """`model_name` and `statistics` are the lender's. `sock` is the lender's end, shared with
        its worker. `batch_size` is that of every call."""
        self.id = id
        self.model_name = model_name
        self.statistics = statistics
        self.batch_size = batch_size
        self.borrower = borrower
        self.is_recalled = False
        self.is_wanted = False
        """The lease was recalled because other requests wait for the instance."""
        self.num_calls = 0
        self.job = Job(InferRequest(model_name, []), ResponseStream())
        """Stands for every call of the lease where the server looks for circles."""
        self._sock = sock
        self._seen_calls = 0
        self._num_idle = 0

    def recall(self, *, is_wanted: bool) -> None:
        """No call can be sent any more. The lease ends when the lender's worker says so."""
        if not self.is_recalled:
            self.is_recalled = True
            self.is_wanted = is_wanted
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RD)

    def end(self) -> None:
        self._sock.close()
        self.borrower.on_lease_end(self)

    def is_idle(self) -> bool:
        """No call was counted the last few times that this was asked."""
        if self._seen_calls != self.num_calls:
            self._seen_calls = self.num_calls
            self._num_idle = 0
        self._num_idle += 1
        return self._num_idle > IDLE_HEARTBEATS

    def count(self, call: DirectCall) -> None:
        """Counts a direct call in the statistics of the lender's model, as if the server had seen
        it."""
        self.num_calls += 1
        statistics, start_ns, end_ns = self.statistics, call.start_ns, call.end_ns
        times = BatchTimes(start_ns, call.input_end_ns, call.output_start_ns, end_ns)
        statistics.record_execution(self.batch_size, times)
        statistics.record_first_response(start_ns, end_ns)
        if call.error_code:
            statistics.record_failure(
                start_ns, end_ns, failure_reason(Code[call.error_code], is_from_backend=True)
            )
        else:
            statistics.record_compute(1, times)
            statistics.record_success(self.batch_size, start_ns, start_ns, start_ns, end_ns)
