"""Outlier ejection: a replica that fails, or is far slower than its peers, for one model gets no
requests of that model for a while.

In:  status and duration of every response, by replica and model; `evaluate` at regular times.
Out: `OutlierRecord.ejected_until_s`, and why.
Rule: the records are per model, because one broken model says nothing about the others of its
      server. At most `max_ejected` of a model's replicas are ejected at the same time, so that a
      request which fails everywhere does not eject everybody.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection

import msgspec


class OutlierOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    errors: int = 5
    """Responses with a server error in a row that eject a replica; 0 never does."""
    latency_factor: float = 5.0
    """A replica whose mean duration is this many times the median of its peers is ejected; 0 never
    does."""
    min_requests: int = 20
    """Requests within `interval_s` that a replica must have before its mean counts."""
    min_difference_s: float = 0.05
    """A replica that is slower by less than this is not ejected, whatever the factor."""
    interval_s: float = 5.0
    eject_s: float = 10.0
    """The first ejection; each further one lasts this much longer, up to `max_eject_s`."""
    max_eject_s: float = 300.0
    max_ejected: float = 0.5
    """The fraction of a model's replicas that may be ejected at the same time."""


class OutlierRecord:
    """What is known about one model on one replica."""

    __slots__ = (
        "duration_s",
        "ejected_until_s",
        "num_ejections",
        "num_errors",
        "num_requests",
        "reason",
        "total_duration_s",
        "total_requests",
    )

    def __init__(self) -> None:
        self.num_errors = 0
        """Server errors in a row."""
        self.num_requests = 0
        self.duration_s = 0.0
        """The sum of durations since the last evaluation."""
        self.total_requests = 0
        self.total_duration_s = 0.0
        self.ejected_until_s = 0.0
        self.num_ejections = 0
        self.reason = ""


class OutlierDetector:
    def __init__(self, options: OutlierOptions, clock_s: Callable[[], float]) -> None:
        self.options = options
        self._clock_s = clock_s

    def on_response(
        self,
        record: OutlierRecord,
        peers: Callable[[], Collection[OutlierRecord]],
        *,
        is_error: bool,
        duration_s: float,
    ) -> bool:
        """Returns True if the replica has been ejected by this response. `peers` returns the
        records of all replicas of the model, this one included."""
        record.num_requests += 1
        record.duration_s += duration_s
        if not is_error:
            record.num_errors = 0
            return False
        record.num_errors += 1
        limit = self.options.errors
        if not limit or record.num_errors < limit:
            return False
        return self._eject(record, peers(), f"{record.num_errors} server errors in a row")

    def evaluate(self, records: Collection[OutlierRecord]) -> bool:
        """Compares the replicas of one model. Returns True if one has been ejected."""
        options = self.options
        means = {
            record: record.duration_s / record.num_requests
            for record in records
            if record.num_requests >= max(1, options.min_requests)
        }
        for record in records:
            record.total_requests += record.num_requests
            record.total_duration_s += record.duration_s
            record.num_requests = 0
            record.duration_s = 0.0
        if not options.latency_factor or len(means) < 2:
            return False
        has_ejected = False
        for record, mean_s in sorted(means.items(), key=lambda item: -item[1]):
            others_s = statistics.median(other for peer, other in means.items() if peer != record)
            if (
                mean_s > others_s * options.latency_factor
                and mean_s - others_s > options.min_difference_s
            ):
                reason = f"mean duration {mean_s:.3g} s, the others have {others_s:.3g} s"
                has_ejected |= self._eject(record, records, reason)
        return has_ejected

    def is_ejected(self, record: OutlierRecord) -> bool:
        return record.ejected_until_s > self._clock_s()

    def _eject(self, record: OutlierRecord, peers: Collection[OutlierRecord], reason: str) -> bool:
        now_s = self._clock_s()
        num_ejected = sum(peer.ejected_until_s > now_s for peer in peers if peer is not record)
        record.num_errors = 0
        if num_ejected + 1 > len(peers) * self.options.max_ejected:
            return False
        record.num_ejections += 1
        record.reason = reason
        record.ejected_until_s = now_s + min(
            self.options.eject_s * record.num_ejections, self.options.max_eject_s
        )
        return True
