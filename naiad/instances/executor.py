"""What a scheduler sees of an instance, and what an instance tells its scheduler.

`Executor` is implemented by naiad.instances.instance.Instance. Schedulers implement
`InstanceObserver` and attach themselves to each of their instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naiad.core.bundle import Queued
from naiad.instances.in_flight import OnExecuted


class StateObserver(Protocol):
    def on_state_change(self, instance: Executor) -> None:
        """`is_serving`, `outage` or the health of the instance may have changed."""
        ...


class InstanceObserver(StateObserver, Protocol):
    def on_capacity(self, instance: Executor) -> None:
        """The instance may have become free."""
        ...

    def on_idle(self, instance: Executor) -> None:
        """No job is in flight any more, or the instance has come back from a loan."""
        ...


class LoanControl(Protocol):
    """The loan of an instance to a model that calls it (naiad.instances.loan.Loan)."""

    is_allowed: bool
    """The scheduler lets calls bypass it and go to this instance."""

    @property
    def is_active(self) -> bool:
        """The instance is lent now, and so it is not free."""
        ...

    def recall(self, *, is_wanted: bool = False) -> None:
        """Ends an active loan. The instance is free again a moment later: `on_capacity` and
        `on_idle` say when. `is_wanted`: other requests wait for the instance."""
        ...


class Executor(Protocol):
    @property
    def max_batches(self) -> int:
        """How many batches the instance executes at once."""
        ...

    @property
    def is_free(self) -> bool:
        """The instance can execute another batch now."""
        ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def outage(self) -> str:
        """Why requests must not wait for the instance, as text: its worker crashes in a loop, or
        its restart takes too long. Empty while it serves or is about to serve again."""
        ...

    @property
    def inflight(self) -> int:
        """Jobs whose final response somebody waits for."""
        ...

    @property
    def loan(self) -> LoanControl: ...

    def attach(self, observer: InstanceObserver) -> None:
        """From now on the instance tells this scheduler, and no other."""
        ...

    def execute(self, jobs: Sequence[Queued], on_executed: OnExecuted | None = None) -> None:
        """Executes a batch; only when `is_free`. The responses go to the streams of the jobs and
        the sources of the bundles. `on_executed` is only for batches without bundles."""
        ...
