"""Whether an instance is fit to serve: an idle worker is asked whether its work loop still runs,
and a model with a readiness hook whether it is ready.

Rule: a busy worker is never asked. Busy is not dead; a limit on execution time is opt-in
      (naiad.instances.execution).
"""

from __future__ import annotations

from collections.abc import Callable

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.instances.channel import Channel
from naiad.instances.in_flight import InFlight
from naiad.instances.loan import Loan
from naiad.instances.observers import Observers
from naiad.ipc.messages import Ping, Pong, ToServer

HEARTBEAT_NS = 2_000_000_000
UNRESPONSIVE_NS = 10_000_000_000
READY_HOOK_NS = 6_000_000_000
"""A bit more than the 5 s that the worker gives the hook."""


class Heartbeat:
    def __init__(
        self, name: str, clock: Clock, in_flight: InFlight, loan: Loan, observers: Observers
    ) -> None:
        self._name = name
        self._clock = clock
        self._in_flight = in_flight
        self._loan = loan
        self._observers = observers
        self._channel: Channel[ToServer] | None = None
        """None unless a worker serves."""
        self.has_ready_hook = False
        self._ping_sent_ns = 0
        self._ping = 0
        self._is_responsive = True
        self._says_ready = True
        self._on_readiness: list[Callable[[bool], None]] = []
        self._deadline: Timer | None = None
        """For the first of `_on_readiness`."""

    @property
    def is_healthy(self) -> bool:
        """A worker serves, responds, and says that its model is ready."""
        return self._channel is not None and self._is_responsive and self._says_ready

    def begin(self, channel: Channel[ToServer], *, has_ready_hook: bool) -> None:
        """A new worker serves."""
        self._channel = channel
        self.has_ready_hook = has_ready_hook
        self._ping_sent_ns = 0
        self._is_responsive = self._says_ready = True

    def end(self) -> None:
        """The worker does not serve any more."""
        self._channel = None
        self._report_readiness(False)

    def beat(self, now_ns: int) -> None:
        lease = self._loan.lease
        if self._channel is None or self._in_flight.batches:
            return
        if lease is not None:
            if lease.is_idle():
                lease.recall(is_wanted=False)
            if not lease.is_recalled or not lease.borrower.is_at_rest:
                return
            # Nobody can be waiting for the worker, and still it has not given the lease back: it
            # may have stopped.
        if (
            self._ping_sent_ns
            and now_ns - self._ping_sent_ns > UNRESPONSIVE_NS
            and self._is_responsive
        ):
            log.error(f"worker of '{self._name}' does not respond: not ready until it does")
            self._is_responsive = False
            self._observers.notify_state_change()
        if not self._ping_sent_ns:
            self._send_ping(now_ns)

    def on_pong(self, message: Pong) -> None:
        if message.number != self._ping:
            return
        self._ping_sent_ns = 0
        was_healthy = self.is_healthy
        self._is_responsive = True
        self._says_ready = message.is_ready
        self._report_readiness(self.is_healthy)
        if self.is_healthy != was_healthy:
            self._observers.notify_state_change()

    def ask_ready(self, on_readiness: Callable[[bool], None]) -> None:
        """Asks the model's own `is_ready`. While the worker is busy, what is known already is the
        result."""
        is_busy = self._in_flight.batches or self._loan.is_active
        if not self.has_ready_hook or self._channel is None or is_busy:
            on_readiness(self.is_healthy)
            return
        self._on_readiness.append(on_readiness)
        now_ns = self._clock.now_ns()
        if self._deadline is None:
            self._deadline = self._clock.call_at(
                now_ns + READY_HOOK_NS, lambda: self._report_readiness(False)
            )
        self._send_ping(now_ns)

    def _send_ping(self, now_ns: int) -> None:
        assert self._channel is not None
        self._ping += 1
        self._ping_sent_ns = now_ns
        self._channel.send(Ping(self._ping))

    def _report_readiness(self, is_ready: bool) -> None:
        """Calls back everybody who has asked."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        callbacks, self._on_readiness = self._on_readiness, []
        for on_readiness in callbacks:
            on_readiness(is_ready)
