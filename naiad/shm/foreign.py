"""Lends memory of one worker (or of another model's arena) to a second worker.

This avoids a copy between two steps of an ensemble. The second worker maps the same descriptor,
under a negative id that is valid only on its channel. While it has a lease, the server keeps its
own view alive, so the owner sees the slot in use: a slot is reused only when no process has a view.
Rule: memory with more than one reader is not lent, because a model may write to its inputs
      (naiad.ipc.framing decides this).
"""

from __future__ import annotations

from naiad.core.tensor import SlotRef
from naiad.shm.directory import SharedRange, SlotDirectory


class _Foreign:
    __slots__ = ("held", "id", "is_gone", "leases")

    def __init__(self, id: int) -> None:
        self.id = id
        self.leases = 0
        self.held: list[tuple[int, memoryview]] = []
        """The lent views, each with its offset in the slot."""
        self.is_gone = False


class ForeignSlots:
    """The slots of others that are lent over one channel.

    `new` (id, size, the owner's descriptor) and `dropped` (id) go to the peer with the next
    message.
    """

    def __init__(self, directory: SlotDirectory) -> None:
        self._directory = directory
        self._by_start: dict[int, _Foreign] = {}
        self._by_id: dict[int, _Foreign] = {}
        self._last_id = 0
        self.new: list[tuple[int, int, int]] = []
        self.dropped: list[int] = []

    def lend(self, view: memoryview, start: int) -> SlotRef | None:
        """Lends the view at address `start`. Returns None if it is not in shared memory."""
        source = self._directory.find(start, view.nbytes)
        if source is None:
            return None
        foreign = self._by_start.get(source.start)
        if foreign is None:
            foreign = self._adopt(source)
        foreign.leases += 1
        offset = start - source.start
        foreign.held.append((offset, view))
        return SlotRef(foreign.id, offset, view.nbytes)

    def reclaim(self, ref: SlotRef) -> memoryview:
        """Returns a view of lent memory that the peer returns as its output.

        Raises ValueError for a bad reference.
        """
        foreign = self._by_id.get(ref.slot)
        if foreign is not None:
            for offset, view in foreign.held:
                start = ref.offset - offset
                if start >= 0 and ref.size >= 0 and start + ref.size <= view.nbytes:
                    return view[start : start + ref.size]
        raise ValueError(f"reference outside of slot {ref.slot}")

    def release(self, id: int) -> None:
        """Ends a lease of the peer. Raises ValueError if it has none."""
        foreign = self._by_id.get(id)
        if foreign is None or foreign.leases == 0:
            raise ValueError(f"release of slot {id} that the peer does not hold")
        foreign.leases -= 1
        if foreign.leases == 0:
            foreign.held.clear()
            if foreign.is_gone:
                del self._by_id[id]

    def announce_again(self, id: int) -> None:
        """The peer has lost the descriptor of a slot. Nothing happens if the slot is gone."""
        for start, foreign in self._by_start.items():
            source = self._directory.find(start, 1)
            if foreign.id == id and source is not None:
                self.new.append((id, source.size, source.fd))

    def close(self) -> None:
        """Forgets all slots, because the peer is gone."""
        for start in list(self._by_start):
            del self._by_start[start]
            source = self._directory.find(start, 1)
            if source is not None:
                source.watchers.remove(self._on_removed)
        self._by_id.clear()
        self.new.clear()
        self.dropped.clear()

    def _adopt(self, source: SharedRange) -> _Foreign:
        self._last_id -= 1
        foreign = _Foreign(self._last_id)
        self._by_start[source.start] = self._by_id[foreign.id] = foreign
        source.watchers.append(self._on_removed)
        self.new.append((foreign.id, source.size, source.fd))
        return foreign

    def _on_removed(self, source: SharedRange) -> None:
        """Is called when the owner has freed the memory or died.

        The peer unmaps the memory too, once it has no view of it.
        """
        foreign = self._by_start.pop(source.start)
        foreign.is_gone = True
        self.dropped.append(foreign.id)
        if foreign.leases == 0:
            del self._by_id[foreign.id]
