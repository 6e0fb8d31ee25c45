"""Counters that limits are checked against: a minute, and the day.

In:  the time and an amount. Out: what is used, and how long to wait until there is room.
Rule: no function reads a clock; the caller passes the time in seconds.
"""

from __future__ import annotations

MINUTE_S = 60.0
DAY_S = 86400


class MinuteWindow:
    """Counts within a minute, which begins with the first amount after the last minute is over. A
    client therefore knows when it has everything again."""

    __slots__ = ("_amount", "_start_s")

    def __init__(self) -> None:
        self._start_s = -MINUTE_S
        self._amount = 0

    def used(self, now_s: float) -> int:
        return self._amount if self._is_open(now_s) else 0

    def add(self, now_s: float, amount: int) -> None:
        if not self._is_open(now_s):
            self._start_s, self._amount = now_s, 0
        self._amount += amount

    def settle(self, now_s: float, num_reserved: int, num_used: int, reserved_s: float) -> None:
        """Replaces what was reserved by what was used. Of a minute that is over nothing is given
        back, but what was used beyond the reservation counts now."""
        is_same = self._is_open(now_s) and reserved_s >= self._start_s
        if is_same or num_used > num_reserved:
            self.add(now_s, num_used - num_reserved)

    def wait_s(self, now_s: float, amount: int, limit: int) -> float:
        """How long until `amount` fits below `limit`; a whole minute for an amount that never
        fits."""
        if amount > limit:
            return MINUTE_S
        return self.reset_s(now_s) if self.used(now_s) + amount > limit else 0.0

    def reset_s(self, now_s: float) -> float:
        """How long until everything is available again."""
        return self._start_s + MINUTE_S - now_s if self._is_open(now_s) else 0.0

    def _is_open(self, now_s: float) -> bool:
        # A clock that was set back must not keep a minute open for longer.
        return self._start_s <= now_s < self._start_s + MINUTE_S


class DayCounter:
    """Counts since midnight, UTC."""

    __slots__ = ("_amount", "day")

    def __init__(self) -> None:
        self.day = 0
        self._amount = 0

    def used(self, now_s: float) -> int:
        day = int(now_s // DAY_S)
        if day != self.day:
            self.day, self._amount = day, 0
        return self._amount

    def add(self, now_s: float, amount: int) -> None:
        self._amount = max(0, self.used(now_s) + amount)

    def settle(self, now_s: float, num_reserved: int, num_used: int, reserved_s: float) -> None:
        """Replaces what was reserved by what was used, as a minute does."""
        is_same = int(reserved_s // DAY_S) == int(now_s // DAY_S)
        if is_same or num_used > num_reserved:
            self.add(now_s, num_used - num_reserved)

    def restore(self, day: int, amount: int) -> None:
        self.day, self._amount = day, amount

    def wait_s(self, now_s: float) -> float:
        """How long until the next day."""
        return DAY_S - now_s % DAY_S
