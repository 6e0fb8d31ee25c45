"""When a dead worker is restarted: at once the first time, then after ever longer delays, and in a
crash loop only now and then. A worker whose files are gone is not restarted before they are back.

There is no I/O here: times come in, delays go out.
"""

from __future__ import annotations

from collections import deque

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True):
    max_restarts: int = 5
    """More deaths than this within the window are a crash loop."""
    window_s: float = 60.0
    first_delay_s: float = 0.0
    max_delay_s: float = 10.0
    broken_delay_s: float = 30.0
    """The delay before each attempt in a crash loop."""
    wait_s: float = 5.0
    """How long requests wait for a worker that restarts."""


class Restarts:
    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: deque[int] = deque()
        self.is_broken = False
        self.lacks_files = False

    def next_delay_s(self, now_ns: int) -> float:
        """Call it once per death or failed start."""
        policy, deaths = self._policy, self._deaths
        deaths.append(now_ns)
        oldest_ns = now_ns - int(policy.window_s * 1e9)
        while deaths[0] < oldest_ns:
            deaths.popleft()
        self.is_broken = len(deaths) > policy.max_restarts
        if self.is_broken:
            return policy.broken_delay_s
        if len(deaths) == 1:
            return policy.first_delay_s
        return min(0.1 * 2.0 ** (len(deaths) - 2), policy.max_delay_s)

    def on_serving(self) -> None:
        self.is_broken = False

    def on_missing_files(self) -> None:
        """No attempt can succeed now."""
        self.is_broken = self.lacks_files = True

    def on_changed_files(self) -> None:
        """What happened with other files says nothing about these."""
        self._deaths.clear()
        self.is_broken = self.lacks_files = False
