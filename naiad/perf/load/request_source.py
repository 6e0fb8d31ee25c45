"""Provides the next request of a load: prepared bytes in turn, or the steps of sequences.

Rule: plain requests are not encoded here. A sequence adds only its id and flags.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from naiad.settings.option import OptionError


class Outgoing(NamedTuple):
    data: bytes
    item: int
    sequence: int = -1


class Source(Protocol):
    def next(self) -> Outgoing: ...

    def finish(self) -> bool:
        """Called when the load stops. Returns True if one more request must be sent to end an open
        sequence."""


class PlainSource:
    """Returns prepared requests in turn. All slots of a load share one source."""

    def __init__(self, prepared: Sequence[bytes], first: int = 0) -> None:
        items = [Outgoing(data, item) for item, data in enumerate(prepared)]
        self._turn = itertools.cycle(items[first:] + items[:first])
        self.next: Callable[[], Outgoing] = self._turn.__next__

    def finish(self) -> bool:
        return False


class SequenceIds:
    """Assigns ids to new sequences, without a limit or cyclically from a range. An id in use is
    never assigned again."""

    def __init__(self, start: int = 1, end: int = 0) -> None:
        """`end` is exclusive; 0 means no end."""
        self._start = start
        self._end = end
        self._next = start
        self._used: set[int] = set()

    def acquire(self) -> int:
        if self._end and len(self._used) >= self._end - self._start:
            raise OptionError(
                f"--sequence-id-range {self._start}:{self._end} has too few ids for the concurrent"
                " sequences"
            )
        while True:
            sequence = self._next
            self._next += 1
            if self._end and self._next >= self._end:
                self._next = self._start
            if sequence not in self._used:
                self._used.add(sequence)
                return sequence

    def release(self, sequence: int) -> None:
        self._used.discard(sequence)


class SequenceSpan:
    """The streams of steps, the lengths and the ids that all sequences of a run share."""

    def __init__(
        self,
        stream_lengths: Sequence[int],
        encode: Callable[[int, int, int, bool, bool], bytes],
        ids: SequenceIds,
        *,
        base_length: int = 0,
        variation_percent: float = 20.0,
        seed: int = 0,
    ) -> None:
        """`encode(stream, step, id, is_start, is_end)` returns the bytes of a request. With
        `base_length` 0, a sequence is as long as its stream."""
        self.encode = encode
        self.ids = ids
        self._stream_lengths = stream_lengths
        self._base_length = base_length
        self._variation = variation_percent / 100
        self._random = Random(seed)
        self._streams = itertools.cycle(range(len(stream_lengths)))
        self._first_items = list(itertools.accumulate(stream_lengths, initial=0))

    def begin(self) -> tuple[int, int, int]:
        """Returns the stream, the number of requests and the id of a new sequence."""
        stream = next(self._streams)
        length = self._stream_lengths[stream]
        if self._base_length:
            spread = self._base_length * self._variation
            length = max(
                1,
                round(self._random.uniform(self._base_length - spread, self._base_length + spread)),
            )
        return stream, length, self.ids.acquire()

    def num_steps(self, stream: int) -> int:
        return self._stream_lengths[stream]

    def item(self, stream: int, step: int) -> int:
        return self._first_items[stream] + step


class SequenceSource:
    """Returns the requests of one sequence after the other."""

    def __init__(self, plan: SequenceSpan) -> None:
        self._plan = plan
        self._stream = self._length = self._position = 0
        self._id = -1
        self._is_finishing = False

    def next(self) -> Outgoing:
        plan = self._plan
        if self._position >= self._length:
            self._stream, self._length, self._id = plan.begin()
            self._position = 0
        step = self._position % plan.num_steps(self._stream)
        is_start = self._position == 0
        is_end = self._is_finishing or self._position == self._length - 1
        sequence = self._id
        data = plan.encode(self._stream, step, sequence, is_start, is_end)
        self._position = self._length if is_end else self._position + 1
        if is_end:
            plan.ids.release(sequence)
        return Outgoing(data, plan.item(self._stream, step), sequence)

    def finish(self) -> bool:
        self._is_finishing = True
        return self._position < self._length
