"""Whether an instance is fit to serve: an idle work loop is asked whether it still turns, and a
model with a hook whether it is ready.

Rule: a busy instance is never asked. Busy is not dead; a limit on execution time is opt-in
      (naiad.instances.execution).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.ipc.messages import Ping, Pong

if TYPE_CHECKING:
    from naiad.instances.instance import Instance

HEARTBEAT_NS = 2_000_000_000
UNRESPONSIVE_NS = 10_000_000_000
READY_HOOK_NS = 6_000_000_000
"""A bit more than the 5 s that the worker gives the hook."""


class Heartbeat:
    def __init__(self, instance: Instance, clock: Clock) -> None:
        self._instance = instance
        self._clock = clock
        self.has_ready_hook = False
        self._ping_sent_ns = 0
        self._ping = 0
        self._is_responsive = True
        self._says_ready = True
        self._ready_askers: list[Callable[[bool], None]] = []
        self._ready_deadline: Timer | None = None
        """Of the first of them."""

    @property
    def is_good(self) -> bool:
        """Answering, and by its own account fit to serve."""
        return self._is_responsive and self._says_ready

    def begin(self, *, has_ready_hook: bool) -> None:
        """A new process has loaded the model."""
        self.has_ready_hook = has_ready_hook
        self._ping_sent_ns = 0
        self._is_responsive = self._says_ready = True

    def beat(self, now_ns: int) -> None:
        instance = self._instance
        if not instance.is_serving or instance.process is None or instance.num_batches:
            return
        if instance.lease is not None:
            if instance.lease.is_idle():
                instance.recall()
            if not instance.lease.is_recalled or not instance.lease.is_at_rest():
                return
            # Nobody can be waiting for it, and still it has not come back: it may have stopped.
        if (
            self._ping_sent_ns
            and now_ns - self._ping_sent_ns > UNRESPONSIVE_NS
            and self._is_responsive
        ):
            log.error(f"worker of '{instance.name}' does not answer: not ready until it does")
            self._is_responsive = False
            instance.tell_state()
        if not self._ping_sent_ns:
            self._ping += 1
            self._ping_sent_ns = now_ns
            instance.process.channel.send(Ping(self._ping))

    def on_pong(self, message: Pong) -> None:
        if message.number != self._ping:
            return
        instance = self._instance
        self._ping_sent_ns = 0
        was_healthy = instance.is_healthy
        self._is_responsive = True
        self._says_ready = message.is_ready
        self.settle(instance.is_healthy)
        if instance.is_healthy != was_healthy:
            instance.tell_state()

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        """Asks the model's own `is_ready` now, unless it is busy: then what is known has to do."""
        instance = self._instance
        is_busy = instance.num_batches or instance.lease is not None
        if (
            not self.has_ready_hook
            or not instance.is_serving
            or is_busy
            or instance.process is None
        ):
            answer(instance.is_healthy)
            return
        self._ready_askers.append(answer)
        if self._ready_deadline is None:
            self._ready_deadline = self._clock.call_at(
                self._clock.now_ns() + READY_HOOK_NS, lambda: self.settle(False)
            )
        self._ping += 1
        self._ping_sent_ns = self._clock.now_ns()
        instance.process.channel.send(Ping(self._ping))

    def settle(self, is_ready: bool) -> None:
        """The answer to all who have asked."""
        if self._ready_deadline is not None:
            self._ready_deadline.cancel()
            self._ready_deadline = None
        askers, self._ready_askers = self._ready_askers, []
        for answer in askers:
            answer(is_ready)
