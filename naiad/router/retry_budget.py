"""How many requests the router may send a second time: a share of all requests, and a burst.

A replica that fails makes every one of its requests a retry. Without a limit, retries add load when
the others have least to spare.
Rule: each request earns `share` of a retry, up to `burst`; a retry costs one.
"""

from __future__ import annotations


class RetryBudget:
    __slots__ = ("_burst", "_share", "num_refused", "tokens")

    def __init__(self, share: float, burst: int) -> None:
        self._share = share
        self._burst = float(burst)
        self.tokens = float(burst)
        self.num_refused = 0

    def on_request(self) -> None:
        self.tokens = min(self.tokens + self._share, self._burst)

    def spend(self) -> bool:
        """Returns False if there is nothing left."""
        if self.tokens < 1:
            self.num_refused += 1
            return False
        self.tokens -= 1
        return True
