"""Counters that limits are checked against: a minute, and the day.

In:  the time and an amount. Out: what is used, and how long to wait until there is room.
Rules: no function reads a clock; the caller passes the time in seconds. Minutes are on a clock that
       is never set. Days are on the wall clock, and setting it forgets nothing.
"""

from __future__ import annotations

MINUTE_S = 60.0
DAY_S = 86400
MAX_DAYS = 4


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
        return now_s < self._start_s + MINUTE_S


class DayCounter:
    """Counts since midnight, UTC. What was counted on a later day, before the clock was set back,
    counts as well; and when the clock has gone too far and comes back, the day is as it was."""

    __slots__ = ("_amounts", "day")

    def __init__(self) -> None:
        self.day = 0
        self._amounts: dict[int, int] = {}
        """Day -> amount, of the last days only."""

    def used(self, now_s: float) -> int:
        day = int(now_s // DAY_S)
        if day != self.day:
            self._move(day)
        return self._amounts.get(day, 0) + self._amounts.get(day + 1, 0)

    def _move(self, day: int) -> None:
        """A day beyond tomorrow was a mistake of the clock: what was counted then is today's."""
        self.day, amounts, self._amounts = day, self._amounts, {}
        for counted, amount in sorted(amounts.items())[-MAX_DAYS:]:
            at = counted if counted <= day + 1 else day
            self._amounts[at] = self._amounts.get(at, 0) + amount

    def add(self, now_s: float, amount: int) -> None:
        amount = max(amount, -self.used(now_s))
        self._amounts[self.day] = self._amounts.get(self.day, 0) + amount

    def settle(self, now_s: float, num_reserved: int, num_used: int, reserved_s: float) -> None:
        """Replaces what was reserved by what was used, as a minute does."""
        is_same = int(reserved_s // DAY_S) == int(now_s // DAY_S)
        if is_same or num_used > num_reserved:
            self.add(now_s, num_used - num_reserved)

    def restore(self, day: int, amount: int) -> None:
        self.day, self._amounts = day, {day: amount}

    def wait_s(self, now_s: float) -> float:
        """How long until the next day."""
        return DAY_S - now_s % DAY_S
