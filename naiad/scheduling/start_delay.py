"""Schedulers that hold their first requests back until a given number waits, so that tests get the
batches that they expect.

In:  Triton's environment variables TRITONSERVER_DELAY_SCHEDULER and
     TRITONSERVER_BACKLOG_DELAY_SCHEDULER. Out: a StartDelay, which applies once to each scheduler.
Triton's rules: the dynamic batcher counts the requests in its queue. The direct sequence batcher
     counts the requests in the slots of all instances and, separately, those in the backlog. The
     oldest sequence batcher counts, for each instance, the sequences that have a request. A model
     without a batcher is not delayed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad import log

DELAY_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG_VARIABLE = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class StartDelay(msgspec.Struct, frozen=True):
    num_queued: int = 0
    """The number of waiting requests at which a scheduler starts; 0 means at once."""
    num_backlogged: int = 0
    """The number of requests that must also wait in the backlog of a direct sequence batcher. It
    has no effect without `num_queued`."""


NO_DELAY = StartDelay()


def read_start_delay(environment: Mapping[str, str]) -> StartDelay:
    return StartDelay(_count(environment, DELAY_VARIABLE), _count(environment, BACKLOG_VARIABLE))


def _count(environment: Mapping[str, str], variable: str) -> int:
    text = environment.get(variable, "").strip()
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        log.warning(f"{variable} is '{text}', expected a number of requests: it is ignored")
        return 0
    return int(text)
