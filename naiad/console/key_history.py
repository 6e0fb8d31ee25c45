"""What each API key has used in the last hour: a point each ten seconds.

In:  accounts of the guard. Out: points as JSON-ready structs. The key "" stands for requests
     without a valid key.
Rule: at most MAX_KEYS keys; those that come later are not drawn, and `naiad_api_key_*` has them.
"""

from __future__ import annotations

import msgspec

from naiad.console.series import Points, SeriesTable
from naiad.keys.account import Accounts

MAX_KEYS = 100
SERIES = ("requests_per_s", "refused_per_s", "prompt_tokens_per_s", "output_tokens_per_s",
          "num_parallel")  # fmt: skip


class _Counters(msgspec.Struct, frozen=True):
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class KeyHistory:
    def __init__(self) -> None:
        self._table = SeriesTable(SERIES, MAX_KEYS)
        self._counters: dict[str, _Counters] = {}

    def add(self, accounts: Accounts, now_s: float) -> None:
        last_s = self._table.last_s
        seconds = 0.0 if last_s is None else now_s - last_s
        counters = {"": _Counters(refused=sum(accounts.refusals.values()))}
        parallel = {"": 0}
        for account in accounts.all():
            parallel[account.key_id] = account.num_parallel
            counters[account.key_id] = _Counters(
                account.num_requests,
                sum(account.refusals.values()),
                account.num_prompt_tokens,
                account.num_output_tokens,
            )
        rows = {
            key: [*_rates(new, self._counters.get(key, _Counters()), seconds), parallel[key]]
            for key, new in counters.items()
        }
        self._counters = counters
        self._table.add(rows, now_s)

    def show(self, key_id: str) -> Points:
        return self._table.show(key_id)


def _rates(new: _Counters, old: _Counters, seconds: float) -> list[float | None]:
    pairs = zip(msgspec.structs.astuple(new), msgspec.structs.astuple(old), strict=True)
    return [None if seconds <= 0 else max(0, now - then) / seconds for now, then in pairs]
