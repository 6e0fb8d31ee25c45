"""Outlier ejection: a replica that fails, refuses or is far slower than its peers for one model
gets no requests of that model for a while.

In:  status and duration of every response, by replica and model; `evaluate` at regular times.
Out: `OutlierRecord.ejected_until_s` and `refused_until_s`, and why.
Rule: the records are per model, because one broken model says nothing about the others of its
      server. At most `max_ejected` of a model's replicas are ejected at the same time, so that a
      request which fails everywhere does not eject everybody.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Collection

import msgspec

_MAX_SAMPLES = 512
_TRIMMED = 0.1
"""The slowest part of the durations, which one hanging request may have made."""
_MAX_INTERVALS = 24
"""Durations that are older say nothing about now."""
_FEW = 0.25
"""The part of `min_requests` after which a replica is judged by its fastest response."""
_FORGIVE = 3
"""One ejection is forgotten after so many times its first duration without another."""
REFUSED_S = 0.1
MAX_REFUSED_S = 30.0


class OutlierOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    errors: int = 5
    """Responses with a server error in a row, or refusals each of which came after a rest, that
    eject a replica; 0 never does."""
    latency_factor: float = 5.0
    """A replica whose mean duration is this many times the median of its peers is ejected; 0 never
    does."""
    min_requests: int = 20
    """Requests that a replica must have before its mean counts. A quarter of them is enough where
    even the fastest was too slow."""
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
        "ejected_until_s",
        "forgiven_s",
        "num_ejections",
        "num_errors",
        "num_intervals",
        "num_refusals",
        "reason",
        "refused_until_s",
        "samples_s",
        "total_duration_s",
        "total_requests",
    )

    def __init__(self) -> None:
        self.num_errors = 0
        """Server errors in a row."""
        self.num_refusals = 0
        """Refusals in a row, without those that came while the replica was left out."""
        self.refused_until_s = 0.0
        """The replica has refused a request, and gets none until then if others can serve it."""
        self.samples_s: deque[float] = deque(maxlen=_MAX_SAMPLES)
        """Durations that have not been judged."""
        self.num_intervals = 0
        """How long they have waited for more."""
        self.total_requests = 0
        self.total_duration_s = 0.0
        self.ejected_until_s = 0.0
        self.num_ejections = 0
        self.forgiven_s = 0.0
        """When the number of ejections has fallen last, or may begin to."""
        self.reason = ""

    @property
    def mean_s(self) -> float:
        """Without the slowest tenth."""
        count = len(self.samples_s) - math.ceil(len(self.samples_s) * _TRIMMED)
        return statistics.fmean(sorted(self.samples_s)[: max(count, 1)])


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
        record.total_requests += 1
        record.total_duration_s += duration_s
        record.samples_s.append(duration_s)
        if not is_error:
            record.num_errors = record.num_refusals = 0
            return False
        record.num_errors += 1
        limit = self.options.errors
        if not limit or record.num_errors < limit:
            return False
        return self._eject(record, peers(), f"{record.num_errors} server errors in a row")

    def on_refusal(
        self,
        record: OutlierRecord,
        peers: Callable[[], Collection[OutlierRecord]],
        retry_after_s: float,
    ) -> bool:
        """Returns True if the replica is left out from now on. `retry_after_s` is -1 where it did
        not say when it may have room."""
        now_s = self._clock_s()
        is_news = record.refused_until_s <= now_s
        wait_s = min(max(retry_after_s, REFUSED_S), MAX_REFUSED_S)
        record.refused_until_s = max(record.refused_until_s, now_s + wait_s)
        if is_news:
            # The refusals of one burst say the same thing.
            record.num_refusals += 1
            limit = self.options.errors
            if limit and record.num_refusals >= limit:
                self._eject(record, peers(), f"it refused {record.num_refusals} times in a row")
        return is_news

    def evaluate(self, records: Collection[OutlierRecord]) -> list[OutlierRecord]:
        """Compares the replicas of one model. Returns those that have been ejected."""
        options = self.options
        enough = max(1, options.min_requests)
        means = {record: record.mean_s for record in records if len(record.samples_s) >= enough}
        few = max(1, math.ceil(enough * _FEW))
        fastest = {
            record: min(record.samples_s)
            for record in records
            if record not in means and len(record.samples_s) >= few
        }
        ejected = [
            record
            for record, own_s in sorted((means | fastest).items(), key=lambda item: -item[1])
            if options.latency_factor and self._is_slow(record, own_s, means, records)
        ]
        for record in records:
            record.num_intervals += 1
            if record in means or record in ejected or record.num_intervals > _MAX_INTERVALS:
                record.samples_s.clear()
                record.num_intervals = 0
            self._forgive(record)
        return ejected

    def _is_slow(
        self,
        record: OutlierRecord,
        own_s: float,
        means: dict[OutlierRecord, float],
        records: Collection[OutlierRecord],
    ) -> bool:
        """Ejects the replica if it is far slower than the others."""
        others = [mean_s for peer, mean_s in means.items() if peer is not record]
        if not others:
            return False
        others_s = statistics.median(others)
        if (
            own_s <= others_s * self.options.latency_factor
            or own_s - others_s <= self.options.min_difference_s
        ):
            return False
        kind = "mean" if record in means else "shortest"
        reason = f"{kind} duration {own_s:.3g} s, the others have {others_s:.3g} s"
        return self._eject(record, records, reason)

    def _forgive(self, record: OutlierRecord) -> None:
        now_s = self._clock_s()
        if record.num_ejections and now_s - record.forgiven_s >= self.options.eject_s * _FORGIVE:
            record.num_ejections -= 1
            record.forgiven_s = now_s

    def _eject(self, record: OutlierRecord, peers: Collection[OutlierRecord], reason: str) -> bool:
        now_s = self._clock_s()
        if record.ejected_until_s > now_s:
            return False  # a response to what it got before
        num_ejected = sum(peer.ejected_until_s > now_s for peer in peers if peer is not record)
        record.num_errors = record.num_refusals = 0
        if num_ejected + 1 > len(peers) * self.options.max_ejected:
            return False
        record.num_ejections += 1
        record.reason = reason
        record.ejected_until_s = record.forgiven_s = now_s + min(
            self.options.eject_s * record.num_ejections, self.options.max_eject_s
        )
        return True
