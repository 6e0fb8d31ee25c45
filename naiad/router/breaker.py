"""A circuit breaker: stops sending to a replica that cannot be reached, and tries it again later.

    CLOSED     -- `threshold` failures in a row -->  OPEN
    OPEN       -- the wait is over, or a health check succeeds -->  HALF_OPEN
    HALF_OPEN  -- one request is sent: success --> CLOSED, failure --> OPEN with twice the wait

In:  the outcome of every request, and of health checks. Out: `allows()`.
Rule: each port of a replica has one. Failures here are failures to reach the replica. Errors that
      it responds with are counted by naiad.router.outlier.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

import msgspec


class BreakerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    failures: int = 3
    """Failures in a row that open the breaker."""
    wait_s: float = 1.0
    """The first wait. It doubles with each trial that fails."""
    max_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.wait_s <= 0 or self.max_wait_s < self.wait_s:
            raise ValueError(
                "a breaker needs failures >= 1, wait_s > 0 and max_wait_s >= wait_s, "
                f"not {self.failures}, {self.wait_s:g} and {self.max_wait_s:g}"
            )


class BreakerState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    __slots__ = (
        "_clock_s",
        "_has_trial",
        "_options",
        "_wait_s",
        "closed_s",
        "num_failures",
        "retry_s",
        "state",
    )

    def __init__(self, options: BreakerOptions, clock_s: Callable[[], float]) -> None:
        self._options = options
        self._clock_s = clock_s
        self.state = BreakerState.CLOSED
        self.num_failures = 0
        """Failures in a row."""
        self.retry_s = 0.0
        """When an open breaker becomes half-open, on the clock."""
        self.closed_s = -math.inf
        """When it has closed for the last time."""
        self._wait_s = options.wait_s
        self._has_trial = False

    def allows(self) -> bool:
        """True if a request may be sent now. A half-open breaker allows one at a time."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and self._clock_s() >= self.retry_s:
            self.state = BreakerState.HALF_OPEN
        return self.state is BreakerState.HALF_OPEN and not self._has_trial

    def on_sent(self) -> None:
        """A request has been sent to the replica."""
        if self.state is BreakerState.HALF_OPEN:
            self._has_trial = True

    def on_success(self) -> None:
        """The replica has responded to a request, whatever the status."""
        if self.state is not BreakerState.CLOSED:
            self.closed_s = self._clock_s()
        self.state = BreakerState.CLOSED
        self.num_failures = 0
        self._wait_s = self._options.wait_s
        self._has_trial = False

    def on_cancelled(self) -> None:
        """A request ended without telling anything about the replica: its client has left."""
        self._has_trial = False

    def on_failure(self) -> None:
        """The replica could not be reached, or died before it responded."""
        self.num_failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._wait_s = min(self._wait_s * 2, self._options.max_wait_s)
        elif self.state is BreakerState.OPEN or self.num_failures < self._options.failures:
            return
        self._open()

    def on_healthy(self) -> None:
        """A health check has succeeded: there is no reason to wait any longer."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN

    def _open(self) -> None:
        self.state = BreakerState.OPEN
        self._has_trial = False
        self.retry_s = self._clock_s() + self._wait_s
