"""The loan of one instance to a model that calls it: whether it may be lent now, and how it comes
back (naiad.instances.lease describes what a lease is).

Only an idle instance is lent, and only one that needs nothing from the server while it executes: no
limit on execution time, no permit.
"""

from __future__ import annotations

import socket

from naiad.core.statistics import ModelStatistics
from naiad.instances.channel import Channel
from naiad.instances.in_flight import InFlight
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.lease import Borrower, Lease, LeaseNumbers
from naiad.instances.observers import Observers
from naiad.ipc.messages import Lend, Returned, ToServer


class Loan:
    def __init__(
        self,
        plan: InstancePlan,
        in_flight: InFlight,
        observers: Observers,
        statistics: ModelStatistics,
        numbers: LeaseNumbers | None,
        *,
        has_permit: bool,
    ) -> None:
        """`numbers` is None where instances are never lent."""
        self._plan = plan
        self._in_flight = in_flight
        self._observers = observers
        self._statistics = statistics
        self._numbers = numbers
        self._can_lend = not (has_permit or plan.is_decoupled or plan.execution_timeout_ns)
        self.is_allowed = False
        """The scheduler lets calls bypass it and go to this instance."""
        self.is_latest = True
        """No later version of the model serves."""
        self.lease: Lease | None = None
        self._channel: Channel[ToServer] | None = None
        self._borrower: Borrower | None = None

    @property
    def is_active(self) -> bool:
        return self.lease is not None

    def begin(self, channel: Channel[ToServer], borrower: Borrower | None) -> None:
        """A worker serves now. `borrower`: the calls of the instance itself; None when the worker
        is of a kind that cannot be lent."""
        self._channel = channel
        self._borrower = borrower

    def lend(self, batch_size: int, borrower: Borrower) -> tuple[Lease, socket.socket] | None:
        """Lends the instance. None when it cannot be spared now. The socket is the borrower's end,
        which the caller closes."""
        channel = self._channel
        if channel is None or self._numbers is None or not self._may_lend:
            return None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        self.lease = Lease(
            self._numbers.next(),
            self._plan.model_name,
            ours,
            self._statistics,
            batch_size,
            borrower,
        )
        channel.send(Lend(self.lease.id), [ours.fileno()])
        return self.lease, theirs

    @property
    def _may_lend(self) -> bool:
        if not (self.is_allowed and self.is_latest and self._can_lend) or self.lease is not None:
            return False
        if self._in_flight.batches or self._in_flight.jobs:
            return False
        # An instance that borrows does not lend, so that no cycle of calls is hidden.
        return self._borrower is not None and not self._borrower.has_borrowed

    def recall(self, *, is_wanted: bool = False) -> None:
        """From now on no call bypasses the server. The instance is free again when its worker has
        said so."""
        if self.lease is not None:
            self.lease.recall(is_wanted=is_wanted)

    def on_returned(self, message: Returned) -> None:
        if self.lease is not None and self.lease.id == message.lease:
            self._end_lease()
            self._observers.notify_capacity()
            self._observers.notify_idle()

    def end(self) -> None:
        """The worker is gone."""
        self._channel = self._borrower = None
        self._end_lease()

    def _end_lease(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()
