"""The slots of one instance, the sequences in them, and which sequences go into the next batch.

`direct`: a batch reaches up to the last slot whose sequence has a job; slots before it that have
          none are filled by null jobs.
`oldest`: the sequences that have a job form a dynamic batch, in the order in which they got it.
Rule: a sequence is in `ready` exactly while one of its jobs waits and none executes.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from naiad.core.clock import Timer
from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import SequenceKey
from naiad.core.response import ResponseStream
from naiad.core.tensor import Tensor
from naiad.instances.executor import Executor
from naiad.scheduling.batch_rule import BatchRule


class Sequence:
    __slots__ = (
        "client_inputs",
        "expiry",
        "expiry_ns",
        "id",
        "is_over",
        "jobs",
        "key",
        "lane",
        "last_used_ns",
        "num_pending",
        "outer",
        "owner",
        "ready_since_ns",
        "slot",
        "state",
    )

    def __init__(self, id: int | str, key: SequenceKey, owner: Identity | None = None) -> None:
        self.id = id
        """The id that the model sees."""
        self.key = key
        self.owner = owner
        """The API key of the request that started the sequence."""
        self.lane: Lane | None = None
        """None while the sequence waits in the backlog."""
        self.slot = -1
        self.jobs: deque[Job] = deque()
        self.num_pending = 0
        """How many events the next job waits for: the end of `execute`, and the state that comes
        with the response."""
        self.is_over = False
        """The last job has come: the id may be used for another sequence, and the sequence leaves
        its slot when that job is done."""
        self.last_used_ns = 0
        self.ready_since_ns = 0
        self.client_inputs: list[Tensor] = []
        """The inputs of the job that executes, without those that the server added."""
        self.outer: ResponseStream | None = None
        """Where the response goes after the state has been removed from it."""
        self.state: dict[str, Tensor] = {}
        self.expiry: Timer | None = None
        self.expiry_ns = 0

    @property
    def is_idle(self) -> bool:
        return not self.num_pending and not self.jobs


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
        """Set when the instance is to be removed: the lane accepts no new sequence, and the future
        is done when the last one has left."""

    # The sequences.

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
        """Call it after anything that may have made the sequence ready, or no longer ready."""
        if sequence.num_pending or not sequence.jobs:
            self.ready.pop(sequence, None)
        elif sequence not in self.ready:
            sequence.ready_since_ns = now_ns
            self.ready[sequence] = None

    # The next batch: the sequences in it (for `direct`, None stands for a null job), or none and
    # how long to wait.

    def choose_oldest(self, rule: BatchRule, now_ns: int) -> tuple[list[Sequence], int]:
        first = next(iter(self.ready))
        count, wait_ns = rule.choose(
            (sequence.jobs[0] for sequence in self.ready), now_ns - first.ready_since_ns
        )
        return [sequence for sequence, _ in zip(self.ready, range(count), strict=False)], wait_ns

    def choose_direct(
        self, direct: DirectRule, rule: BatchRule, now_ns: int
    ) -> tuple[list[Sequence | None], int]:
        waiting = sorted(self.ready, key=lambda sequence: sequence.slot)
        if direct.max_queue_delay_ns and len(waiting) < direct.minimum_slot_utilization * len(
            self.slots
        ):
            age_ns = now_ns - min(sequence.jobs[0].queue_start_ns for sequence in waiting)
            if age_ns < direct.max_queue_delay_ns:
                return [], direct.max_queue_delay_ns - age_ns
        batch: list[Sequence | None] = [None] * (waiting[-1].slot + 1)
        signature = rule.signature(waiting[0].jobs[0]) if rule.is_checked else None
        for sequence in waiting:
            if not rule.is_checked or rule.signature(sequence.jobs[0]) == signature:
                batch[sequence.slot] = sequence
        return batch, 0
