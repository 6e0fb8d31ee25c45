"""Whether an instance is fit to serve: an idle worker is asked whether its work loop still runs.
The model's own opinion is asked by naiad.instances.ready_hook.

Rule: a busy worker is never asked. Busy is not dead; a limit on execution time is opt-in
      (naiad.instances.execution).
"""

from __future__ import annotations

from naiad import log
from naiad.instances.channel import Channel
from naiad.instances.in_flight import InFlight
from naiad.instances.loan import Loan
from naiad.instances.observers import Observers
from naiad.ipc.messages import Ping, Pong, ToServer

HEARTBEAT_NS = 2_000_000_000
UNRESPONSIVE_NS = 10_000_000_000


class Heartbeat:
    def __init__(self, name: str, in_flight: InFlight, loan: Loan, observers: Observers) -> None:
        self._name = name
        self._in_flight = in_flight
        self._loan = loan
        self._observers = observers
        self._channel: Channel[ToServer] | None = None
        """None unless a worker serves."""
        self._ping_sent_ns = 0
        self._ping = 0
        self._is_responsive = True

    @property
    def is_healthy(self) -> bool:
        """A worker serves and responds."""
        return self._channel is not None and self._is_responsive

    @property
    def complaint(self) -> str:
        """Why the worker that serves is not healthy; empty if it is."""
        return "" if self._is_responsive else "unresponsive"

    def begin(self, channel: Channel[ToServer]) -> None:
        """A new worker serves."""
        self._channel = channel
        self._ping_sent_ns = 0
        self._is_responsive = True

    def end(self) -> None:
        """The worker does not serve any more."""
        self._channel = None

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
            self._ping += 1
            self._ping_sent_ns = now_ns
            self._channel.send(Ping(self._ping))

    def on_pong(self, message: Pong) -> None:
        if message.number != self._ping:
            return
        self._ping_sent_ns = 0
        if not self._is_responsive:
            self._is_responsive = True
            self._observers.notify_state_change()
