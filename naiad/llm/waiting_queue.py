"""Sequences that hold neither blocks nor a slot, and the order in which they are admitted: API keys
in turn, and the sequences of one key in order of rank.

A key's share counts the tokens that were computed for it, divided by its weight. The key with the
smallest count is next. A key that was idle starts at the smallest count of the active keys, so it
has no credit for the time in which it asked for nothing. Requests without a key form one share.
Rule: cancelled sequences leave their share's heap when they reach its head.
"""

from __future__ import annotations

import heapq

from naiad.llm.sequence import Sequence, Status

MAX_IDLE_SHARES = 1024


class KeyShare:
    """What one API key has used and what it waits for."""

    __slots__ = ("heap", "num_running", "num_waiting", "served", "weight")

    def __init__(self) -> None:
        self.heap: list[tuple[tuple[int, int], Sequence]] = []
        self.weight = 1
        self.served = 0.0
        """Computed tokens, divided by the weight."""
        self.num_waiting = 0
        self.num_running = 0

    @property
    def is_active(self) -> bool:
        return self.num_waiting > 0 or self.num_running > 0

    def peek(self) -> Sequence:
        """Requires num_waiting > 0."""
        while self.heap[0][1].status is not Status.WAITING:
            heapq.heappop(self.heap)
        return self.heap[0][1]


class WaitingQueue:
    def __init__(self) -> None:
        self._shares: dict[str, KeyShare] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        share = self.share_of(sequence)
        if not share.is_active:
            self._activate(share, sequence)
        heapq.heappush(share.heap, (sequence.rank, sequence))
        share.num_waiting += 1
        self._count += 1

    def peek(self) -> Sequence | None:
        if not self._count:
            return None
        if len(self._shares) == 1:
            (share,) = self._shares.values()
            return share.peek()
        return min(
            (share.served, share.num_running, share.peek().rank, share.peek())
            for share in self._shares.values()
            if share.num_waiting
        )[3]

    def pop(self, sequence: Sequence) -> None:
        """Removes the sequence that `peek` has returned; it runs now."""
        share = self.share_of(sequence)
        heapq.heappop(share.heap)
        share.num_waiting -= 1
        share.num_running += 1
        self._count -= 1

    def drop(self, sequence: Sequence) -> None:
        """Counts out a sequence that was finished while it waited; it leaves the heap later."""
        share = self.share_of(sequence)
        share.num_waiting -= 1
        if not share.num_waiting:
            share.heap.clear()
        self._count -= 1

    def stop_running(self, sequence: Sequence) -> None:
        """Counts out a sequence that has finished or was preempted."""
        self.share_of(sequence).num_running -= 1

    def charge(self, sequence: Sequence, num_computed: int) -> None:
        """Counts the sequence's tokens up to `num_computed`, each of them once: what is computed
        again after a preemption is not the key's fault."""
        added = num_computed - sequence.num_charged
        if added > 0:
            sequence.num_charged = num_computed
            share = self.share_of(sequence)
            share.served += added / share.weight

    def has_room(self, key_id: str, count: int, limit: int) -> bool:
        """True if `count` more sequences of the key may wait. When the queue is full, a key still
        has its equal part of it, so that another key's flood does not shut it out."""
        if self._count + count <= limit:
            return True
        share = self._shares.get(key_id)
        num_waiting = 0 if share is None else share.num_waiting
        num_others = sum(
            1 for other in self._shares.values() if other.num_waiting and other is not share
        )
        return num_others > 0 and num_waiting + count <= limit // (num_others + 1)

    def deprived(self) -> Sequence | None:
        """Returns the next sequence if its key runs nothing while other keys do."""
        if len(self._shares) == 1:
            return None
        sequence = self.peek()
        if sequence is None or self.share_of(sequence).num_running:
            return None
        return sequence

    def largest_key(self, served: float) -> str | None:
        """Returns the key with the most running sequences for its weight, among those that run more
        than one and have been served at least as much. A key that has been served less would get
        the place back at once."""
        return max(
            (
                (share.num_running / share.weight, key_id)
                for key_id, share in self._shares.items()
                if share.num_running > 1 and share.served >= served
            ),
            default=(0.0, None),
        )[1]

    def share_of(self, sequence: Sequence) -> KeyShare:
        key_id = sequence.request.key_id
        share = self._shares.get(key_id)
        if share is None:
            share = self._shares[key_id] = KeyShare()
        return share

    def _activate(self, share: KeyShare, sequence: Sequence) -> None:
        active = [other.served for other in self._shares.values() if other.is_active]
        if not active or len(self._shares) > MAX_IDLE_SHARES:
            self._shares = {
                key_id: other for key_id, other in self._shares.items() if other.is_active
            }
            self._shares[sequence.request.key_id] = share
        share.served = max(share.served, min(active)) if active else 0.0
        share.weight = max(1, sequence.request.key_weight)
