"""The budget for the bytes that the server holds for requests and responses, over all connections:
received, decompressed, queued and unsent.

In:  each connection opens a MemoryAccount and charges bytes to it before it allocates them, or as
     they arrive. Out: True, or False when the bytes must be refused.
Rule: a connection may hold as much as is left for all others. One connection alone gets half of the
      budget, and n greedy ones get 1/(n+1) each, so a newcomer always finds room.
Hot: a small request costs one subtraction with a comparison when it comes and one addition when it
     ends. An account reserves bytes in chunks for that, and `settle` gives unused chunks back.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

RETRY_AFTER_S = 1
CHUNK_BYTES = 64 * 1024
SMALL_BYTES = 64 * 1024
"""Larger messages have memory of their own, which is counted until its last view is gone. Smaller
ones are counted until their request ends."""
FULL_MESSAGE = "the server holds as many bytes of requests and responses as it may, try again later"

Grow: TypeAlias = Callable[[int], bool]
"""Asks for more bytes; returns False when they are refused."""


class MemoryBudget:
    def __init__(self, limit_bytes: int = sys.maxsize) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        """The maximum of `used_bytes` since `pop_peak`."""
        self.num_refused = 0
        self._lock = threading.RLock()
        self._held: dict[int, weakref.ref[Any]] = {}
        """Weak references to memory that gives its bytes back when it is gone."""

    @property
    def total_limit_bytes(self) -> int:
        """The limit of all processes that share the budget."""
        return self.limit_bytes

    @property
    def total_used_bytes(self) -> int:
        """What all processes that share the budget hold."""
        return self.used_bytes

    @property
    def total_num_refused(self) -> int:
        """How often all processes that share the budget have refused bytes."""
        return self.num_refused

    def open_account(self) -> MemoryAccount:
        return MemoryAccount(self)

    def pop_peak(self) -> int:
        peak, self.peak_bytes = self.peak_bytes, self.used_bytes
        return peak


class MemoryAccount:
    """The part of the budget that one connection holds. `reserve`, `give_back`, `hold` and
    `produce` may be called from any thread; everything else belongs to the event loop."""

    __slots__ = ("_budget", "free_bytes", "reserved_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.reserved_bytes = 0
        self.free_bytes = 0
        """Bytes that are reserved and not in use. The fast paths change this number themselves."""

    def __del__(self) -> None:
        self.settle()

    def charge(self, num_bytes: int) -> bool:
        """Returns False when the bytes are refused; nothing has changed then."""
        self.free_bytes -= num_bytes
        if self.free_bytes >= 0 or self.replenish(num_bytes):
            return True
        self._budget.num_refused += 1
        return False

    def replenish(self, num_bytes: int) -> bool:
        """`free_bytes` is below 0 after `num_bytes` were subtracted: reserves what is missing.
        Returns False when that is refused; the subtraction is undone then."""
        missing = -self.free_bytes
        for extra in (CHUNK_BYTES, 0):
            if self.reserve(missing + extra):
                self.free_bytes += missing + extra
                return True
        self.free_bytes += num_bytes
        return False

    def fits(self, num_bytes: int) -> bool:
        """Returns True if the bytes could be charged now."""
        missing = num_bytes - self.free_bytes
        budget = self._budget
        fits = self.reserved_bytes + missing <= budget.limit_bytes - budget.used_bytes - missing
        if not fits:
            budget.num_refused += 1
        return fits

    def add(self, num_bytes: int) -> None:
        """Counts bytes that are there already, such as those in a socket's write buffer. A negative
        number takes them off."""
        self.free_bytes -= num_bytes
        if self.free_bytes < 0:
            self._add_reserved(-self.free_bytes)
            self.free_bytes = 0

    def release(self, num_bytes: int) -> None:
        self.free_bytes += num_bytes
        if self.free_bytes > 2 * CHUNK_BYTES:
            self.settle()

    def settle(self) -> None:
        """Gives back what is reserved and not in use."""
        if self.free_bytes > 0:
            free_bytes, self.free_bytes = self.free_bytes, 0
            self.give_back(free_bytes)

    # From any thread.

    def reserve(self, num_bytes: int) -> bool:
        budget = self._budget
        with budget._lock:
            left = budget.limit_bytes - budget.used_bytes - num_bytes
            if self.reserved_bytes + num_bytes > left:
                return False
            self._add_reserved(num_bytes)
            return True

    def give_back(self, num_bytes: int) -> None:
        with self._budget._lock:
            self.reserved_bytes -= num_bytes
            self._budget.used_bytes -= num_bytes

    def _add_reserved(self, num_bytes: int) -> None:
        budget = self._budget
        with budget._lock:
            self.reserved_bytes += num_bytes
            budget.used_bytes += num_bytes
            budget.peak_bytes = max(budget.peak_bytes, budget.used_bytes)

    def hold(self, memory: memoryview, num_bytes: int) -> None:
        """Gives `num_bytes`, which were charged or reserved before, back when the array under
        `memory` is gone."""
        held = self._budget._held

        def on_gone(reference: weakref.ref[Any]) -> None:
            del held[id(reference)]
            self.give_back(num_bytes)

        reference = weakref.ref(memory.obj, on_gone)
        held[id(reference)] = reference

    def produce(self, make: Callable[[Grow], memoryview]) -> memoryview:
        """Returns what `make` returns, counted until it is gone. `make` must ask for bytes before
        it allocates them."""
        reserved_bytes = 0

        def grow(num_bytes: int) -> bool:
            nonlocal reserved_bytes
            if not self.reserve(num_bytes):
                self._budget.num_refused += 1
                return False
            reserved_bytes += num_bytes
            return True

        try:
            memory = make(grow)
        except BaseException:
            self.give_back(reserved_bytes)
            raise
        self.give_back(reserved_bytes - memory.nbytes)
        self.hold(memory, memory.nbytes)
        return memory
