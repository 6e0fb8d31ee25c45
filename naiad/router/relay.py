"""One request on its way through the router: attempts, until one replica responds.

A subclass knows the protocol: how to send the request to a replica, and how to respond.
Rule: a request is sent again only before the first byte of its response has gone to the client, and
      only if that is safe: it never reached the replica, the replica refused to begin with it, or
      executing it twice does no harm (idempotent, and not part of a sequence).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError, unavailable
from naiad.router.lost_sequence import lose

if TYPE_CHECKING:
    from naiad.router.core import ModelRouting, RouterCore
    from naiad.router.replica import Replica
    from naiad.router.sequences import SequenceStep

_monotonic = time.monotonic


class ReplicaError(NaiadError):
    """What a replica did makes it impossible to respond with what it sent."""

    def __init__(self, http_status: int, message: str) -> None:
        """`http_status` is 502 for a response that is none, 504 for one that did not come."""
        super().__init__(Code.UNAVAILABLE, message)
        self.http_status = http_status


WAKE_CHECK_S = 0.1
"""How often a request looks whether a model that sleeps has a replica."""


class Relay(ABC):
    __slots__ = (
        "_limit",
        "_timer",
        "core",
        "is_over",
        "is_responding",
        "model",
        "num_attempts",
        "replica",
        "routing",
        "sent_s",
        "sequence",
        "tried",
        "version",
        "wake_deadline_s",
    )

    is_grpc = False

    def __init__(
        self,
        core: RouterCore,
        routing: ModelRouting,
        model: str,
        version: str,
        sequence: SequenceStep | None,
    ) -> None:
        self.core = core
        self.routing = routing
        self.model = model
        self.version = version
        self.sequence = sequence
        self.replica: Replica | None = None
        """The replica that works on the request now."""
        self.tried: list[Replica] = []
        """Replicas that failed with it."""
        self.num_attempts = 0
        self.sent_s = 0.0
        self.is_responding = False
        """The response has begun: the request cannot be sent again."""
        self.is_over = False
        self.wake_deadline_s = 0.0
        """Until when the request waits for a model that sleeps; 0 if it does not wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.TimerHandle | None = None
        """Ends an attempt whose response does not begin."""

    # What a policy may read; see RoutedRequest.

    @property
    @abstractmethod
    def path(self) -> str: ...

    @property
    @abstractmethod
    def body(self) -> Buffer: ...

    @abstractmethod
    def header(self, name: str) -> str: ...

    # The protocol's part.

    @abstractmethod
    def send(self, replica: Replica) -> None:
        """Sends the request."""

    @abstractmethod
    def leave(self, replica: Replica) -> None:
        """Nobody wants the response of this replica any more."""

    @abstractmethod
    def tell_lost(self, sequence: SequenceStep, replica: Replica) -> None:
        """Sends the replica a request of the sequence that it refuses."""

    def lose(self) -> None:
        """The replica does not get the request, or nobody knows whether it did."""
        if self.sequence is not None:
            lose(self.core, self.model, self.sequence, partial(self.tell_lost, self.sequence))

    @abstractmethod
    def respond_error(self, error: NaiadError) -> None:
        """Responds to the client with an error of the router's own."""

    @property
    def is_read(self) -> bool:
        """The request executes nothing."""
        return False

    @property
    def is_idempotent(self) -> bool:
        return self.routing.is_idempotent and self.sequence is None

    @property
    def may_move(self) -> bool:
        """True if the request may be sent to another replica although this one may have begun."""
        return not self.is_responding and self.is_idempotent

    # Attempts.

    def begin(self) -> None:
        self.core.retries.on_request()
        prepare = self.routing.prepare
        if prepare is None or not prepare(self, self._on_prepared):
            self._attempt("")

    def _on_prepared(self) -> bool:
        """The policy has read the request. Returns False if the client has left meanwhile."""
        if self.is_over:
            return False
        self._attempt("")
        return not self.is_over

    def _attempt(self, reason: str) -> None:
        self._timer = None
        try:
            replica = self.core.choose(self)
        except NaiadError as error:
            self._end_wake()
            self.is_over = True
            self.respond_error(error)
            return
        if replica is None:
            if self.num_attempts and self.num_attempts <= self.core.config.retry.max_retries:
                self.num_attempts += 1
                self._wait(reason)
                return
            if self._await_wake():
                return
            self.is_over = True
            self.lose()
            self.respond_error(self.core.nobody(self.model, self.version, reason))
            return
        self._end_wake()
        self.replica = replica
        self.num_attempts += 1
        replica.counters["requests"] += 1
        self.sent_s = _monotonic()
        config, routing = self.core.config, self.routing
        limit_s = config.read_timeout_s if self.is_read else routing.response_timeout_s
        if limit_s:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(limit_s, self._on_no_response, replica, limit_s)
        self.send(replica)

    def _on_no_response(self, replica: Replica, limit_s: float) -> None:
        """The request is not sent again: another replica may need as long."""
        self._limit = None
        self.core.no_response(self, replica)
        self._refuse(504, f"replica '{replica.name}': no response within {limit_s:g} s")
        self.leave(replica)

    def _await_wake(self) -> bool:
        """Waits for the first replica of a model that sleeps. False if there is no use in it."""
        core, now_s = self.core, _monotonic()
        if not self.wake_deadline_s:
            if not core.begin_wait(self.model):
                return False
            self.wake_deadline_s = now_s + core.config.max_wait_s
        elif now_s >= self.wake_deadline_s:
            self._end_wake()
            return False
        self._timer = asyncio.get_running_loop().call_later(WAKE_CHECK_S, self._attempt, "")
        return True

    def _end_wake(self) -> None:
        if self.wake_deadline_s:
            self.wake_deadline_s = 0.0
            self.core.end_wait(self.model)

    def on_malformed(self, reason: str) -> None:
        """The replica sent something that is not a response to the request. It is not sent again:
        nobody knows what the replica took it for."""
        replica = self.replica
        if replica is None or self.is_over:
            return
        self.fail_replica(replica, "lost")
        self._refuse(502, f"replica '{replica.name}': {reason}")

    def _refuse(self, http_status: int, reason: str) -> None:
        self.note_end()
        self.core.counters["failures"] += 1
        self.lose()
        self.respond_error(ReplicaError(http_status, reason))

    def on_failure(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        """The attempt ended without a response."""
        replica = self.replica
        if replica is None or self.is_over:
            return
        self.replica = None
        self._end_limit()
        if not is_reused:
            self.fail_replica(replica, "connect_failures" if is_unsent else "lost")
        self.core.ended(self, replica)
        reason = f"replica '{replica.name}': {reason}"
        if is_unsent and self.sequence is None:
            self.tried.append(replica)
            if self.core.has_untried(self):
                # This has cost nobody anything, so it is neither limited nor counted.
                self.num_attempts -= 1
                self._retry(replica, reason)
                return
        if (is_unsent or self.is_idempotent) and self._may_retry():
            self._retry(replica, reason)
            return
        self.is_over = True
        self.core.counters["failures"] += 1
        self.lose()
        retry_after_s = self.core.fleet.retry_after_s() if is_unsent or self.is_idempotent else None
        self.respond_error(unavailable(reason, retry_after_s))

    def fail_replica(self, replica: Replica, kind: str) -> None:
        self.core.fleet.on_failure(replica, kind, sent_s=self.sent_s, is_grpc=self.is_grpc)

    def note_refusal(self, retry_after_s: float) -> None:
        """The replica has no room. `retry_after_s` is -1 if it does not say for how long."""
        if self.replica is not None:
            self.core.fleet.on_refusal(
                self.replica, self.model, retry_after_s, is_grpc=self.is_grpc
            )

    def should_pass_on(self) -> bool:
        """The replica has refused to begin with the request. Returns True if another replica gets
        it; the refusal is the response to the client otherwise."""
        replica = self.replica
        if replica is None or self.sequence is not None:
            return False
        self.tried.append(replica)
        if not self.core.has_untried(self) or not self._may_retry():
            self.tried.pop()
            return False
        replica.counters["not_admitted"] += 1
        self.replica = None
        self._end_limit()
        self.core.ended(self, replica)
        self._retry(replica, f"replica '{replica.name}' did not admit the request")
        return True

    def _may_retry(self) -> bool:
        core = self.core
        return self.num_attempts <= core.config.retry.max_retries and core.retries.spend()

    def _retry(self, replica: Replica, reason: str) -> None:
        self.core.counters["retries"] += 1
        if replica not in self.tried:
            self.tried.append(replica)
        if self.core.has_untried(self):
            self._attempt(reason)
        else:
            self._wait(reason)

    def _wait(self, reason: str) -> None:
        wait_s = self.core.config.retry.backoff_s * 2 ** (self.num_attempts - 1)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._attempt, reason)

    # Ends.

    def note_response(self, *, is_error: bool, is_refusal: bool = False) -> None:
        """The response has begun, and its first byte goes to the client now."""
        self.is_responding = True
        self._end_limit()
        assert self.replica is not None
        self.core.responded(self, self.replica, is_error=is_error, is_refusal=is_refusal)

    def note_end(self) -> None:
        """The response is complete, or will never be."""
        self.is_over = True
        self._end_limit()
        replica, self.replica = self.replica, None
        if replica is not None:
            self.core.ended(self, replica)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def cancel_wait(self) -> None:
        self._end_wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
