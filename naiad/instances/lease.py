"""An instance that is lent to the model that keeps calling it: the calls go from worker to worker,
and the server is spared both ways.

The server lends (`Calls`) when a model has made blocking calls of one form often enough and nobody
else waits for the instance, and recalls it the moment somebody does. While it is lent, the instance
counts as busy. From the recall on no call can be sent this way; the lender's worker finishes what
had been sent, and says so. Until then those who want it wait, as they would for any busy instance:
a worker that was stopped in the midst of a call is no different. A model with a limit on execution
time is never lent, so the limit holds there.
Invariant: what lends does not borrow, and what borrows does not lend, so no circle of calls is
           hidden from the server.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import Protocol

from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.work import DirectCall
from naiad.errors import Code

LEND_AFTER = 8
"""Calls of one model to another before an instance is lent; doubled each time it had to be recalled
soon."""
MAX_LEND_AFTER = 4096
IDLE_HEARTBEATS = 5
"""After which what is not used is recalled: an instance that is not lent is looked after better."""
WORTHWHILE = 8
"""A lease was, if it served so many times the calls that it took to get it."""

_ids = itertools.count(1 << 40)
"""Leases share a number space with the handles of an instance's requests, which start at 1."""


class Lender(Protocol):
    """An instance (naiad.instances.instance.Instance)."""

    @property
    def model_name(self) -> str: ...

    def recall(self, *, is_wanted: bool = False) -> None: ...


class Lease:
    __slots__ = (
        "_num_idle",
        "_on_over",
        "_seen_calls",
        "_sock",
        "batch_size",
        "id",
        "is_at_rest",
        "is_recalled",
        "is_wanted",
        "lender",
        "num_calls",
        "request",
        "statistics",
    )

    def __init__(
        self,
        lender: Lender,
        sock: socket.socket,
        statistics: ModelStatistics,
        batch_size: int,
        is_at_rest: Callable[[], bool],
        on_over: Callable[[Lease], None],
    ) -> None:
        """`sock` is the lender's end, shared with its worker. Of the borrower: `is_at_rest` when it
        executes nothing, so that no call can be under way; `on_over` when the lender has the
        instance back."""
        self.id = next(_ids)
        self.lender = lender
        self.statistics = statistics
        self.batch_size = batch_size
        self.is_at_rest = is_at_rest
        self.is_recalled = False
        self.is_wanted = False
        """Recalled because others wait for the instance."""
        self.num_calls = 0
        self.request = InferRequest(lender.model_name, [])
        """Stands for whatever call is being made, where the server looks for circles."""
        self._sock = sock
        self._seen_calls = 0
        self._num_idle = 0
        self._on_over = on_over

    def recall(self, *, is_wanted: bool) -> None:
        """Nothing can be sent by it any more. It is over when the lender's worker says so."""
        if not self.is_recalled:
            self.is_recalled = True
            self.is_wanted = is_wanted
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RD)

    def end(self) -> None:
        self._sock.close()
        self._on_over(self)

    def is_idle(self) -> bool:
        """No call was told of the last few times that this was asked."""
        if self._seen_calls != self.num_calls:
            self._seen_calls = self.num_calls
            self._num_idle = 0
        self._num_idle += 1
        return self._num_idle > IDLE_HEARTBEATS

    def count(self, call: DirectCall) -> None:
        """In the statistics of the lender's model, as if the server had seen it."""
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
