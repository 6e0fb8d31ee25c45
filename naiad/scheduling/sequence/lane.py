"""The slots of one instance, the sequences in them, and which of those go into its next batch.

`direct`: a batch reaches up to the last slot that has something to do; the slots in between that
          have nothing are filled by null requests.
`oldest`: the sequences that have something to do stand in line, in the order in which they came to
          it, and form a dynamic batch.
Rule: a sequence is in `ready` exactly while it has a request that waits and none that executes.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from naiad.core.clock import Timer
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.tensor import Tensor
from naiad.instances.executor import Executor
from naiad.scheduling.batch_rule import BatchRule


class Sequence:
    __slots__ = (
        "expiry", "expiry_ns", "given_inputs", "id", "is_over", "lane", "last_used_ns", "num_pending", "outer", "ready_since_ns",
        "requests", "slot", "state",
    )  # fmt: skip

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.lane: Lane | None = None
        """None while it waits in the backlog."""
        self.slot = -1
        self.requests: deque[InferRequest] = deque()
        self.num_pending = 0
        """What must happen before its next request may go: the end of `execute`, and the state that
        comes with the answer."""
        self.is_over = False
        """Its last request has come: nobody can reach it by its id any more, and it leaves its slot
        when that one is done."""
        self.last_used_ns = 0
        self.ready_since_ns = 0
        self.given_inputs: list[Tensor] = []
        """Of the request that executes, without those that the server added."""
        self.outer: ResponseStream | None = None
        """Where the answer goes, while the state is taken out of it on the way."""
        self.state: dict[str, Tensor] = {}
        self.expiry: Timer | None = None
        self.expiry_ns = 0

    @property
    def is_idle(self) -> bool:
        return not self.num_pending and not self.requests


class DirectRule(msgspec.Struct, frozen=True):
    max_queue_delay_ns: int
    minimum_slot_utilization: float


class Lane:
    def __init__(self, instance: Executor, num_slots: int) -> None:
        self.instance = instance
        self.slots: list[Sequence | None] = [None] * num_slots
        self.num_used = 0
        self.ready: dict[Sequence, None] = {}
        self.timer: Timer | None = None
        self.left: asyncio.Future[None] | None = None
        """Set when the instance is to go: it takes no new sequences, and this is done when the last
        one has left."""

    # Who is in it.

    def first_free_slot(self) -> int:
        """-1 when there is none."""
        return -1 if self.num_used == len(self.slots) else self.slots.index(None)

    def add(self, sequence: Sequence, slot: int) -> None:
        sequence.lane = self
        sequence.slot = slot
        self.slots[slot] = sequence
        self.num_used += 1

    def remove(self, sequence: Sequence) -> None:
        self.slots[sequence.slot] = None
        self.num_used -= 1
        self.ready.pop(sequence, None)
        sequence.lane = None

    def update(self, sequence: Sequence, now_ns: int) -> None:
        """After anything that may have given it something to do, or taken it away."""
        if sequence.num_pending or not sequence.requests:
            self.ready.pop(sequence, None)
        elif sequence not in self.ready:
            sequence.ready_since_ns = now_ns
            self.ready[sequence] = None

    # The next batch: the sequences in it (for `direct`, None stands for a null request), or none
    # and how long to wait.

    def choose_oldest(self, rule: BatchRule, now_ns: int) -> tuple[list[Sequence], int]:
        first = next(iter(self.ready))
        count, wait_ns = rule.choose(
            (sequence.requests[0] for sequence in self.ready), now_ns - first.ready_since_ns
        )
        return [sequence for sequence, _ in zip(self.ready, range(count), strict=False)], wait_ns

    def choose_direct(
        self, direct: DirectRule, rule: BatchRule, now_ns: int
    ) -> tuple[list[Sequence | None], int]:
        waiting = sorted(self.ready, key=lambda sequence: sequence.slot)
        if direct.max_queue_delay_ns and len(waiting) < direct.minimum_slot_utilization * len(
            self.slots
        ):
            age_ns = now_ns - min(sequence.requests[0].queue_start_ns for sequence in waiting)
            if age_ns < direct.max_queue_delay_ns:
                return [], direct.max_queue_delay_ns - age_ns
        batch: list[Sequence | None] = [None] * (waiting[-1].slot + 1)
        signature = rule.signature(waiting[0].requests[0]) if rule.is_checked else None
        for sequence in waiting:
            if not rule.is_checked or rule.signature(sequence.requests[0]) == signature:
                batch[sequence.slot] = sequence
        return batch, 0
