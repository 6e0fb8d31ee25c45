"""The waiting requests of one model: priorities, timeouts, limits. Only this file decides *order*.

Level 1 goes first, always. Each level has its policy: how many may wait, how long, and what happens
then: REJECT fails the request at that moment (by timer, not when its turn comes), DELAY moves it
behind all that have not timed out.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from naiad.core.clock import Clock, Timer
from naiad.core.request import InferRequest
from naiad.errors import NaiadError, cancelled, unavailable

RETRY_AFTER_S = 1


class QueuePolicy(msgspec.Struct, frozen=True):
    is_delay: bool = False
    """`timeout_action: DELAY`; otherwise REJECT."""
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0
    """0 means unlimited."""

    def timeout_us(self, request: InferRequest) -> int:
        """A request may only make its timeout smaller, and only where the policy lets it."""
        timeout_us = self.default_timeout_us
        if (
            self.allow_timeout_override
            and request.timeout_us
            and (timeout_us == 0 or request.timeout_us < timeout_us)
        ):
            timeout_us = request.timeout_us
        return timeout_us


class _Level:
    __slots__ = ("delayed", "has_timeouts", "policy", "size", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.has_timeouts = bool(policy.default_timeout_us) or policy.allow_timeout_override
        self.waiting: deque[InferRequest] = deque()
        self.delayed: deque[InferRequest] = deque()
        self.size = 0


class RequestQueue:
    """`on_removed(request, error)` is called for each request that leaves without being taken: it
    must be answered with the error."""

    def __init__(
        self,
        clock: Clock,
        on_removed: Callable[[InferRequest, NaiadError], None],
        default_policy: QueuePolicy = QueuePolicy(),  # noqa: B008 - frozen
        priority_levels: int = 0,
        default_priority_level: int = 0,
        priority_queue_policy: dict[int, QueuePolicy] | None = None,
    ) -> None:
        policies = priority_queue_policy or {}
        self._clock = clock
        self._on_removed = on_removed
        self._default_level = max(default_priority_level, 1)
        self._levels = [
            _Level(policies.get(level, default_policy))
            for level in range(1, max(priority_levels, 1) + 1)
        ]
        self._size = 0
        self._expiries: list[tuple[int, int, _Level, InferRequest]] = []
        self._order = itertools.count()
        self._timer: Timer | None = None
        self._timer_ns = 0

    def __len__(self) -> int:
        return self._size

    def push(self, request: InferRequest) -> None:
        """Raises NaiadError when its level is full."""
        priority = request.priority
        at = priority if 1 <= priority <= len(self._levels) else self._default_level
        level = self._levels[at - 1]
        policy = level.policy
        if policy.max_queue_size and level.size >= policy.max_queue_size:
            raise unavailable("Exceeds maximum queue size", RETRY_AFTER_S)
        level.waiting.append(request)
        level.size += 1
        self._size += 1
        request.is_waiting = True
        request.waits_in = level
        assert request.stream is not None
        request.stream.on_cancel(self._cancel, level, request)
        if level.has_timeouts:
            timeout_us = policy.timeout_us(request)
            if timeout_us:
                self._expire_at(request.queue_start_ns + timeout_us * 1000, level, request)

    def first(self) -> InferRequest | None:
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                while queue:
                    if queue[0].is_waiting:
                        return queue[0]
                    queue.popleft()
        return None

    def in_order(self) -> Iterator[InferRequest]:
        """Without copying them; the queue must not change meanwhile."""
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                for request in queue:
                    if request.is_waiting:
                        yield request

    def take(self, count: int) -> list[InferRequest]:
        """The first `count` requests; they are the caller's now."""
        taken: list[InferRequest] = []
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                while queue and len(taken) < count:
                    request = queue.popleft()
                    if request.is_waiting:
                        request.is_waiting = False
                        level.size -= 1
                        taken.append(request)
        self._size -= len(taken)
        return taken

    def remove_all(self, error: NaiadError) -> None:
        for request in self.take(self._size):
            self._on_removed(request, error)

    def _cancel(self, level: _Level, request: InferRequest) -> None:
        if request.is_waiting:
            self._drop(level, request, cancelled("request was cancelled while it was waiting"))

    def _drop(self, level: _Level, request: InferRequest, error: NaiadError) -> None:
        """It stays in its deque until its turn comes, unless such leftovers pile up behind an
        instance that hangs."""
        request.is_waiting = False
        level.size -= 1
        self._size -= 1
        if len(level.waiting) + len(level.delayed) > 2 * level.size + 64:
            level.waiting = deque(r for r in level.waiting if r.is_waiting)
            level.delayed = deque(r for r in level.delayed if r.is_waiting)
        self._on_removed(request, error)

    # Timeouts: one timer, for the earliest.

    def _expire_at(self, when_ns: int, level: _Level, request: InferRequest) -> None:
        heapq.heappush(self._expiries, (when_ns, next(self._order), level, request))
        if self._timer is None or when_ns < self._timer_ns:
            self._set_timer(when_ns)

    def _set_timer(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        self._timer = self._clock.call_at(when_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ns = self._clock.now_ns()
        expiries = self._expiries
        while expiries and (not expiries[0][3].is_waiting or expiries[0][0] <= now_ns):
            _, _, level, request = heapq.heappop(expiries)
            # It may have been taken and be waiting again, here or elsewhere: that time is not this
            # one's.
            if (
                request.is_waiting
                and request.waits_in is level
                and self._expiry_ns(level, request) <= now_ns
            ):
                self._expire(level, request)
        if expiries:
            self._set_timer(expiries[0][0])

    @staticmethod
    def _expiry_ns(level: _Level, request: InferRequest) -> int:
        return request.queue_start_ns + level.policy.timeout_us(request) * 1000

    def _expire(self, level: _Level, request: InferRequest) -> None:
        if level.policy.is_delay:
            level.waiting.remove(request)
            level.delayed.append(request)
        else:
            self._drop(level, request, unavailable("Request timeout expired"))
