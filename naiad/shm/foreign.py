"""Memory of one worker (or of another model's arena), lent on to a second worker: no copy between
two steps of an ensemble.

The second worker maps the same descriptor, under an id below zero that only its channel knows. As
long as it has a lease, the server keeps its own view alive, so the owner sees the slot in use: a
slot is reused only when no view lives anywhere.
Rule: memory that more than one reader holds is lent to none of them, because a model may write to
      its inputs (Link.place).
"""

from __future__ import annotations

from naiad.core.work import SlotRef
from naiad.shm.directory import SharedRange, SlotDirectory


class _Foreign:
    __slots__ = ("held", "id", "is_gone", "leases")

    def __init__(self, id: int) -> None:
        self.id = id
        self.leases = 0
        self.held: list[tuple[int, memoryview]] = []
        """Views and where they begin in the slot."""
        self.is_gone = False


class ForeignSlots:
    """Of one channel. `new` (id, size, the owner's descriptor) and `dropped` are what its peer is
    told with the next message."""

    def __init__(self, directory: SlotDirectory) -> None:
        self._directory = directory
        self._by_start: dict[int, _Foreign] = {}
        self._by_id: dict[int, _Foreign] = {}
        self._last_id = 0
        self.new: list[tuple[int, int, int]] = []
        self.dropped: list[int] = []

    def lend(self, view: memoryview, start: int) -> SlotRef | None:
        """`start`: the address of the view. None when it is not in shared memory."""
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

    def take_back(self, ref: SlotRef) -> memoryview:
        """The peer answers with memory that was lent to it. Raises ValueError for a bad
        reference."""
        foreign = self._by_id.get(ref.slot)
        if foreign is not None:
            for offset, view in foreign.held:
                at = ref.offset - offset
                if at >= 0 and ref.size >= 0 and at + ref.size <= view.nbytes:
                    return view[at : at + ref.size]
        raise ValueError(f"reference outside of slot {ref.slot}")

    def release(self, id: int) -> None:
        """The peer's lease has ended. Raises ValueError when it has none."""
        foreign = self._by_id.get(id)
        if foreign is None or foreign.leases == 0:
            raise ValueError(f"release of slot {id} that the peer does not hold")
        foreign.leases -= 1
        if foreign.leases == 0:
            foreign.held.clear()
            if foreign.is_gone:
                del self._by_id[id]

    def close(self) -> None:
        """The peer is gone."""
        for start in list(self._by_start):
            del self._by_start[start]
            source = self._directory.find(start, 1)
            if source is not None:
                source.watchers.remove(self._on_gone)
        self._by_id.clear()
        self.new.clear()
        self.dropped.clear()

    def _adopt(self, source: SharedRange) -> _Foreign:
        self._last_id -= 1
        foreign = _Foreign(self._last_id)
        self._by_start[source.start] = self._by_id[foreign.id] = foreign
        source.watchers.append(self._on_gone)
        self.new.append((foreign.id, source.size, source.fd))
        return foreign

    def _on_gone(self, source: SharedRange) -> None:
        """Its owner has let it go or has died: the peer unmaps it, too, when it has done with
        it."""
        foreign = self._by_start.pop(source.start)
        foreign.is_gone = True
        self.dropped.append(foreign.id)
        if foreign.leases == 0:
            del self._by_id[foreign.id]
