"""Records the times of each request in arrays, which are collected window by window.

In:  `add` and `add_failure`, in the order in which requests end. Out: Records, from `collect`.
Rule: `add` is on the hot path. It appends a few numbers and makes no objects unless has_details is
      set.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from naiad.perf.channels.call import Call

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Detail(msgspec.Struct, gc=False):
    """One request and its responses, for streams and exports."""

    item: int
    sequence: int
    start_ns: int
    response_ns: list[int]
    responses: list[Any]


class Failure(msgspec.Struct, frozen=True):
    end_ns: int
    message: str


class Records(msgspec.Struct, frozen=True):
    """The requests that ended in one window, in order."""

    numbers: Numbers
    """One row for each property below; times are in ns."""
    details: list[Detail]
    failures: list[Failure]

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def _row(self, number: int) -> Numbers:
        row: Numbers = self.numbers[number]
        return row

    @property
    def start(self) -> Numbers:
        return self._row(0)

    @property
    def end(self) -> Numbers:
        return self._row(1)

    @property
    def send(self) -> Numbers:
        return self._row(2)

    @property
    def receive(self) -> Numbers:
        return self._row(3)

    @property
    def late(self) -> Numbers:
        """Time between the intended and the actual send time."""
        return self._row(4)

    @property
    def num_responses(self) -> Numbers:
        return self._row(5)

    @property
    def first(self) -> Numbers:
        """Arrival time of the first response."""
        return self._row(6)

    @property
    def sequence(self) -> Numbers:
        """Id of the request's sequence; -1 for none."""
        return self._row(7)

    @property
    def latency(self) -> Numbers:
        return self.end - self.start


class Recorder:
    def __init__(self, *, has_details: bool = False) -> None:
        self.num_ended = 0
        """Number of requests that have ended since the start, including failures."""
        self._has_details = has_details
        self._reset()

    def _reset(self) -> None:
        (
            self._start,
            self._end,
            self._send,
            self._receive,
            self._late,
            self._num_responses,
            self._first,
            self._sequence,
        ) = (array("q") for _ in range(8))
        self._details: list[Detail] = []
        self._failures: list[Failure] = []

    def add(self, call: Call, num_responses: int, now_ns: int) -> None:
        self.num_ended += 1
        intended_ns, sent_ns = call.intended_ns, call.sent_ns
        self._start.append(intended_ns)
        self._end.append(now_ns)
        self._send.append(call.written_ns - sent_ns)
        self._receive.append(now_ns - call.first_byte_ns)
        self._late.append(sent_ns - intended_ns)
        self._num_responses.append(num_responses)
        response_ns = call.response_ns
        self._first.append(response_ns[0] if response_ns else now_ns)
        self._sequence.append(call.sequence)
        if self._has_details:
            self._details.append(
                Detail(
                    call.item,
                    call.sequence,
                    intended_ns,
                    response_ns or [now_ns],
                    call.responses or [],
                )
            )

    def add_failure(self, message: str, now_ns: int) -> None:
        self.num_ended += 1
        self._failures.append(Failure(now_ns, message))

    def collect(self) -> Records:
        rows = (
            self._start,
            self._end,
            self._send,
            self._receive,
            self._late,
            self._num_responses,
            self._first,
            self._sequence,
        )
        records = Records(
            np.array([np.frombuffer(row, np.int64) for row in rows], np.int64),
            self._details,
            self._failures,
        )
        self._reset()
        return records


def merge(parts: Sequence[Records]) -> Records:
    """Concatenates at least one Records, in order."""
    details = [detail for part in parts for detail in part.details]
    failures = [failure for part in parts for failure in part.failures]
    return Records(np.concatenate([part.numbers for part in parts], axis=1), details, failures)
