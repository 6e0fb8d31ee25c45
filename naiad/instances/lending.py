"""An instance's part in leases (naiad.instances.lease): when it may lend itself, when it may
borrow, and how it gets itself back.

Only an idle instance is lent, and only one of which nothing is asked that the server alone can do:
limits, permits, readiness hooks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad.core.statistics import ModelStatistics
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.lease import Lease
from naiad.instances.open_work import OpenWork
from naiad.ipc.messages import Lend, Returned

if TYPE_CHECKING:
    from naiad.instances.instance import Instance


class Lending:
    def __init__(
        self,
        instance: Instance,
        plan: InstancePlan,
        work: OpenWork,
        statistics: ModelStatistics,
        *,
        has_permit: bool,
    ) -> None:
        self._instance = instance
        self._plan = plan
        self._work = work
        self._statistics = statistics
        self._has_permit = has_permit

    @property
    def may_borrow(self) -> bool:
        """What is lent itself does not borrow."""
        instance = self._instance
        return (
            instance.lease is None
            and instance.max_batches == 1
            and not self._plan.is_decoupled
            and instance.is_serving
        )

    @property
    def _may_lend(self) -> bool:
        instance = self._instance
        if not instance.is_lendable or not instance.is_serving or instance.lease is not None:
            return False
        if instance.num_batches or self._work.requests:
            return False
        if (
            instance.max_batches != 1
            or self._has_permit
            or self._plan.is_decoupled
            or self._plan.execution_timeout_ns
        ):
            return False
        if instance.has_ready_hook or not instance.is_latest:
            return False  # the hook is asked whenever it is idle
        return instance.calls is not None and not instance.calls.has_borrowed

    def lend(
        self, batch_size: int, is_at_rest: Callable[[], bool], on_over: Callable[[Lease], None]
    ) -> tuple[Lease, socket.socket] | None:
        instance = self._instance
        if not self._may_lend or instance.process is None:
            return None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        instance.lease = Lease(instance, ours, self._statistics, batch_size, is_at_rest, on_over)
        instance.process.channel.send(Lend(instance.lease.id), [ours.fileno()])
        return instance.lease, theirs

    def on_returned(self, message: Returned) -> None:
        instance = self._instance
        if instance.lease is not None and instance.lease.id == message.lease:
            self.end()
            instance.on_free(instance)
            instance.on_idle(instance)

    def end(self) -> None:
        lease, self._instance.lease = self._instance.lease, None
        if lease is not None:
            lease.end()
