"""The waiting jobs of one model: priorities, timeouts, limits. Only this file decides *order*.

Level 1 always goes first. Each level has its policy: how many jobs may wait, how long, and what
happens then: REJECT fails the job at that moment (by a timer, not when its turn comes), DELAY moves
it behind all jobs that have not timed out. Within a level API keys take turns
(naiad.scheduling.key_turns).
Invariant: `job.queued_in` is a level exactly while the job waits there. A job that is cancelled or
           times out stays in the level's deque until it comes first, and is skipped then. It
           has lost its request by then, so that no tensors wait there. A bundle
           (naiad.core.bundle) is one entry that counts as its requests. Once it has been divided,
           it stays as the place of its jobs.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

import msgspec

from naiad.core.bundle import Bundle, Queued
from naiad.core.clock import Clock, Timer
from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.errors import NaiadError, cancelled, unavailable
from naiad.scheduling.key_turns import KeyTurns, key_of

RETRY_AFTER_S = 1
MAX_LEFTOVERS = 64
"""A level holds at most this many removed jobs, and as many again as it has waiting ones."""
_GONE = InferRequest("", [])


class QueuePolicy(msgspec.Struct, frozen=True):
    is_delay: bool = False
    """`timeout_action: DELAY`; otherwise REJECT."""
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0
    """0 means unlimited."""

    def timeout_us(self, job: Job) -> int:
        """A request may only shorten its timeout, and only where the policy allows it."""
        timeout_us = self.default_timeout_us
        requested_us = job.request.timeout_us
        if (
            self.allow_timeout_override
            and requested_us
            and (timeout_us == 0 or requested_us < timeout_us)
        ):
            timeout_us = requested_us
        return timeout_us


class _Level:
    __slots__ = ("delayed", "has_timeouts", "owner", "policy", "size", "turns", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.has_timeouts = bool(policy.default_timeout_us) or policy.allow_timeout_override
        self.waiting: deque[Queued] = deque()
        self.delayed: deque[Queued] = deque()
        self.size = 0
        """The number of requests that wait."""
        self.owner: Identity | None = None
        """The key whose jobs wait, if there are no turns."""
        self.turns: KeyTurns | None = None
        """Set while jobs of several API keys wait."""

    def victim(self, job: Job, limit: int) -> Job | None:
        """The level is full. Each key that waits still has an equal part of it, so that another
        key's flood does not shut it out: this is the last job of the key that has most, which must
        leave. None if the job's key has its part already."""
        if self.turns is None and key_of(job.request.identity) == key_of(self.owner):
            return None
        counts = Counter(key_of(one.request.identity) for one in self._removable())
        own = key_of(job.request.identity)
        num_own = counts.pop(own, 0)
        if not counts or num_own >= limit // (len(counts) + 1):
            return None
        largest = max(counts, key=counts.__getitem__)
        return next(
            one
            for one in reversed(list(self._removable()))
            if key_of(one.request.identity) == largest
        )

    def _removable(self) -> Iterator[Job]:
        """Jobs of clients: what a model or an ensemble waits for is not given up for others."""
        for queue in (self.waiting, self.delayed):
            for job in self.jobs_of(queue):
                if not job.is_inner:
                    yield job

    def alive(self, queue: deque[Queued]) -> Iterator[Queued]:
        """Yields what waits, without leftovers. The jobs of a divided bundle come in its place."""
        for entry in queue:
            if entry.queued_in is not self:
                continue
            if type(entry) is Bundle and entry.jobs is not None:
                for job in entry.jobs:
                    if job.queued_in is self:
                        yield job
            else:
                yield entry

    def jobs_of(self, queue: deque[Queued]) -> list[Job]:
        """Returns what waits as jobs. Divides the bundles."""
        jobs: list[Job] = []
        for entry in self.alive(queue):
            if type(entry) is Bundle:
                jobs += entry.divide()
            else:
                jobs.append(entry)
        return jobs

    def skip_leftovers(self, queue: deque[Queued]) -> Queued | None:
        """Returns the first that waits. Removes what is before it."""
        while queue:
            entry = queue[0]
            if entry.queued_in is self:
                if type(entry) is not Bundle or entry.jobs is None:
                    return entry
                queue.popleft()
                queue.extendleft(reversed(entry.jobs))
            else:
                queue.popleft()
        return None

    def add(self, job: Job) -> None:
        """Adds a job of another key than `owner`, or while keys take turns."""
        owner = job.request.identity
        if self.size == 0:
            self.waiting.clear()
            self.owner, self.turns = owner, None
            self.waiting.append(job)
            return
        if self.turns is None:
            if key_of(owner) == key_of(self.owner):  # the key file was read again
                self.waiting.append(job)
                return
            jobs = self.jobs_of(self.waiting)
            self.waiting = deque(jobs)
            self.turns = KeyTurns(jobs)
        self.skip_leftovers(self.waiting)
        self.turns.insert(self.waiting, job)


class JobQueue:
    def __init__(
        self,
        clock: Clock,
        on_removed: Callable[[Job, NaiadError], None],
        default_policy: QueuePolicy = QueuePolicy(),  # noqa: B008 - frozen
        priority_levels: int = 0,
        default_priority_level: int = 0,
        priority_queue_policy: dict[int, QueuePolicy] | None = None,
        max_queue_size: int = 0,
    ) -> None:
        """`on_removed` gets every job that is cancelled, times out or is removed by `remove_all`.
        `max_queue_size` is the limit of levels whose policy sets none; 0 means unlimited."""
        policies = priority_queue_policy or {}
        self._clock = clock
        self._max_queue_size = max_queue_size
        self._on_removed = on_removed
        self._default_level = min(max(default_priority_level, 1), max(priority_levels, 1))
        self._levels = [
            _Level(policies.get(level, default_policy))
            for level in range(1, max(priority_levels, 1) + 1)
        ]
        self._size = 0
        self._expiries: list[tuple[int, int, _Level, weakref.ref[Job]]] = []
        """A job that an instance executes must not stay in memory until its timeout."""
        self._order = itertools.count()
        self._timer: Timer | None = None
        self._timer_ns = 0

    def __len__(self) -> int:
        return self._size

    def push(self, job: Job, *, is_admitted: bool = False) -> None:
        """Raises NaiadError when the job's level is full, unless a key that has more of it must
        give up a job. The limit that no config has set is not for jobs of a request that has been
        admitted before: calls of a model, and jobs that are `is_admitted`."""
        priority = job.request.priority
        number = priority if 1 <= priority <= len(self._levels) else self._default_level
        level = self._levels[number - 1]
        policy = level.policy
        limit = policy.max_queue_size or self._max_queue_size
        if (
            limit
            and level.size >= limit
            and (
                policy.max_queue_size
                or not (is_admitted or job.is_admitted or job.caller is not None)
            )
        ):
            victim = level.victim(job, limit)
            error = unavailable("Exceeds maximum queue size", RETRY_AFTER_S)
            if victim is None:
                raise error
            self._remove(level, victim, error)
        if level.turns is None and job.request.identity is level.owner:
            level.waiting.append(job)
        else:
            level.add(job)
        level.size += 1
        self._size += 1
        job.queued_in = level
        job.stream.on_cancel(self._cancel, level, job)
        if level.has_timeouts:
            timeout_us = policy.timeout_us(job)
            if timeout_us:
                self._expire_at(job.queue_start_ns + timeout_us * 1000, level, job)

    def push_bundle(self, bundle: Bundle) -> bool:
        """Adds the requests of a bundle as one entry. Returns False, and does nothing, if they must
        be pushed one by one: the level has no room for all of them, they have time limits, or
        API keys take turns."""
        level = self._levels[self._default_level - 1]
        policy = level.policy
        limit = policy.max_queue_size or self._max_queue_size
        count = len(bundle.handles)
        if (
            (limit and level.size + count > limit)
            or policy.default_timeout_us
            or level.turns is not None
            or level.owner is not None
        ):
            return False
        level.waiting.append(bundle)
        level.size += count
        self._size += count
        bundle.queued_in = level
        bundle.on_divide = self._on_divided
        return True

    def _on_divided(self, bundle: Bundle, jobs: list[Job]) -> None:
        level = bundle.queued_in
        assert isinstance(level, _Level)
        for job in jobs:
            job.queued_in = level
            job.stream.on_cancel(self._cancel, level, job)

    def has_room(self, job: Job, limit: int) -> bool:
        """Whether fewer than `limit` jobs would be served before this one, or fewer of its API key
        than its part of the limit."""
        priority = job.request.priority
        number = priority if 1 <= priority <= len(self._levels) else self._default_level
        limit -= sum(level.size for level in self._levels[: number - 1])
        level = self._levels[number - 1]
        return limit > 0 and (level.size < limit or level.victim(job, limit) is not None)

    def first(self) -> Queued | None:
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                entry = level.skip_leftovers(queue)
                if entry is not None:
                    return entry
        return None

    def in_order(self) -> Iterator[Queued]:
        """Yields an entry for each request, so a bundle comes once for each of its requests.
        Nothing is copied; the queue must not change meanwhile."""
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                for entry in queue:
                    if entry.queued_in is level:
                        if type(entry) is Bundle:
                            yield from _each_request(entry)
                        else:
                            yield entry

    def pop(self, count: int) -> list[Queued]:
        """Removes and returns the first `count` requests. A bundle is split if it has more."""
        return self._pop(count, sys.maxsize)

    def pop_size(self, max_size: int) -> list[Queued]:
        """Removes and returns the first requests whose batch sizes together are at most `max_size`,
        and at least one request."""
        return self._pop(self._size, max_size)

    def _pop(self, count: int, room: int) -> list[Queued]:
        """`room` is the limit for the sum of the batch sizes."""
        popped: list[Queued] = []
        for level in self._levels:
            for queue in (level.waiting, level.delayed):
                before = count
                while queue and count > 0 and room > 0:
                    entry = queue.popleft()
                    if entry.queued_in is not level:
                        continue
                    if type(entry) is Bundle:
                        if entry.jobs is not None:
                            queue.extendleft(reversed(entry.jobs))
                            continue
                        size = len(entry.handles)
                        fitting = min(size, count, room // entry.batch_size)
                        if not fitting and not popped:
                            fitting = 1
                        room -= fitting * entry.batch_size
                        if fitting < size:
                            queue.appendleft(entry)
                            if not fitting:
                                room = 0
                                break
                            entry = entry.split(fitting)
                        entry.on_divide = None
                        count -= fitting
                    else:
                        room -= entry.batch_size
                        if room < 0 and popped:
                            queue.appendleft(entry)
                            break
                        count -= 1
                    entry.queued_in = None
                    popped.append(entry)
                level.size -= before - count
                self._size -= before - count
        return popped

    def remove_all(self, error: NaiadError) -> None:
        for entry in self.pop(self._size):
            for job in entry.divide() if type(entry) is Bundle else (entry,):
                self._on_removed(job, error)

    def _cancel(self, level: _Level, job: Job) -> None:
        if job.queued_in is level:
            self._remove(level, job, cancelled("request was cancelled while it was waiting"))

    def _remove(self, level: _Level, job: Job, error: NaiadError) -> None:
        """Leaves the job in its deque, unless such leftovers pile up behind an instance that
        hangs."""
        job.queued_in = None
        level.size -= 1
        self._size -= 1
        if len(level.waiting) + len(level.delayed) > 2 * level.size + MAX_LEFTOVERS:
            level.waiting = deque(level.alive(level.waiting))
            level.delayed = deque(level.alive(level.delayed))
        self._on_removed(job, error)
        job.request = _GONE

    # Timeouts: there is one timer, for the earliest.

    def _expire_at(self, when_ns: int, level: _Level, job: Job) -> None:
        expiries = self._expiries
        if len(expiries) > 2 * self._size + MAX_LEFTOVERS:
            expiries[:] = [expiry for expiry in expiries if _is_waiting(expiry[3])]
            heapq.heapify(expiries)
        heapq.heappush(expiries, (when_ns, next(self._order), level, weakref.ref(job)))
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
        while expiries and (expiries[0][0] <= now_ns or not _is_waiting(expiries[0][3])):
            _, _, level, reference = heapq.heappop(expiries)
            job = reference()
            # The job may have left and wait again, here or in another queue. It has another time
            # limit there.
            if job is not None and job.queued_in is level and self._expiry_ns(level, job) <= now_ns:
                self._expire(level, job)
        if expiries:
            self._set_timer(expiries[0][0])

    @staticmethod
    def _expiry_ns(level: _Level, job: Job) -> int:
        return job.queue_start_ns + level.policy.timeout_us(job) * 1000

    def _expire(self, level: _Level, job: Job) -> None:
        if level.policy.is_delay:
            level.waiting.remove(job)
            level.delayed.append(job)
        else:
            self._remove(level, job, unavailable("Request timeout expired"))


def _each_request(bundle: Bundle) -> Iterable[Queued]:
    if bundle.jobs is None:
        return repeat(bundle, len(bundle.handles))
    return [job for job in bundle.jobs if job.queued_in is bundle.queued_in]


def _is_waiting(reference: weakref.ref[Job]) -> bool:
    job = reference()
    return job is not None and job.queued_in is not None
