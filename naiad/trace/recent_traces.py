"""The latest traces in memory, for people: of requests that asked for one, and of a sample.

In:  tickets, which a client sends with the one request that it wants to see; a sample that ends by
     itself. Out: waterfalls, the latest first.
Rule: memory is bounded. `is_on` is False unless somebody has asked for a trace, so that requests
      cost nothing; while it is True, requests do not use the fast path.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable

import msgspec

from naiad.core.trace import TraceGroup
from naiad.trace.waterfall import Waterfall, build_waterfall

HEADER = "x-naiad-trace"
"""A request with a ticket in this header is traced."""
MAX_TRACES = 100
MAX_TICKETS = 100
MAX_SPANS = 200
"""A request that causes more requests than this keeps the first of them."""
TICKET_S = 30.0


class RecentTrace(msgspec.Struct, frozen=True):
    number: int
    time_s: float
    """When the request ended, on the clock of time.time()."""
    ticket: str
    waterfall: Waterfall


class RecentTraces:
    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._traces: deque[RecentTrace] = deque(maxlen=MAX_TRACES)
        self._numbers = itertools.count(1)
        self._tickets: dict[str, float] = {}
        """Ticket -> when it expires."""
        self.rate = 0
        """One of so many requests is traced; 0 switches the sample off."""
        self.ends_s = 0.0
        """When the sample ends."""
        self._num_seen = 0

    @property
    def is_on(self) -> bool:
        return bool(self._tickets) or self.rate > 0

    def issue_ticket(self) -> str:
        """The oldest ticket expires early if there are too many."""
        while len(self._tickets) >= MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(9)
        self._tickets[ticket] = self._clock_s() + TICKET_S
        return ticket

    def set_sample(self, rate: int, seconds: float) -> None:
        self.rate = rate
        self.ends_s = self._clock_s() + seconds if rate else 0.0

    def expire(self) -> None:
        """Drops tickets that nobody used, and ends a sample whose time is over."""
        now_s = self._clock_s()
        self._tickets = {
            ticket: ends_s for ticket, ends_s in self._tickets.items() if ends_s > now_s
        }
        if self.rate and now_s >= self.ends_s:
            self.set_sample(0, 0.0)

    def choose(self, ticket: str) -> bool:
        """Returns whether the next request, which came with this ticket, is traced."""
        if ticket and self._tickets.pop(ticket, None) is not None:
            return True
        if not self.rate:
            return False
        self._num_seen += 1
        return self._num_seen % self.rate == 0

    def add(self, ticket: str, group: TraceGroup) -> None:
        if group.is_discarded:
            return
        del group.traces[MAX_SPANS:]
        self._traces.append(
            RecentTrace(next(self._numbers), self._clock_s(), ticket, build_waterfall(group))
        )

    def all(self) -> list[RecentTrace]:
        return list(reversed(self._traces))
