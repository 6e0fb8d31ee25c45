from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from naiad.core.tensor import SlotRef
from naiad.shm.arena import Arena, LentSlots, Slot, _size_class

MB = 1 << 20


def lend(arena: Arena, lent: LentSlots, view: memoryview) -> tuple[Slot, SlotRef]:
    """Does what a channel does: announces a slot once and counts the lease."""
    found = arena.find(view)
    assert found is not None
    slot, offset = found
    if slot.id not in lent._mappings:
        lent.add(slot.id, slot.size, os.dup(slot.fd))
    arena.lend(slot)
    return slot, SlotRef(slot.id, offset, view.nbytes)


def test_both_sides_read_and_write_the_same_memory() -> None:
    arena, lent = Arena(), LentSlots()
    view = arena.allocate(MB)
    view[:5] = b"hello"
    _, ref = lend(arena, lent, view)
    theirs = lent.view(ref)
    assert bytes(theirs[:5]) == b"hello"
    theirs[:5] = b"world"
    assert bytes(view[:5]) == b"world"


def test_reuses_a_slot_only_when_neither_side_has_a_view() -> None:
    arena, lent = Arena(), LentSlots()
    view = arena.allocate(MB)
    slot, ref = lend(arena, lent, view)
    kept: Any = np.frombuffer(lent.view(ref), np.float32)[10:20]
    del view
    assert lent.pop_released() == []
    other = arena.allocate(MB)
    assert arena.find(other) != (slot, 0)
    del kept
    assert lent.pop_released() == [slot.id]
    arena.release(slot.id)
    again = arena.allocate(MB)
    found = arena.find(again)
    assert found is not None
    assert found[0] is slot


def test_finds_slices_and_arrays_but_not_other_memory() -> None:
    arena = Arena()
    view = arena.allocate(MB)
    found = arena.find(view[100:200])
    assert found is not None
    assert found[1] == 100
    array = np.frombuffer(view, np.float32)[5:]
    found = arena.find(array.data.cast("B"))
    assert found is not None
    assert found[1] == 20
    assert arena.find(memoryview(bytearray(100))) is None


def test_frees_idle_slots() -> None:
    now = 0
    arena = Arena(lambda: now)
    view = arena.allocate(3 * MB)
    del view
    assert arena.trim(10) == []
    now = 10
    assert len(arena.trim(10)) == 1
    assert arena.committed_bytes == 0


def test_size_classes_waste_at_most_a_quarter() -> None:
    for size in (1, 65536, 65537, 100_000, MB, MB + 1, 5 * MB - 3, 300 * MB):
        assert size <= _size_class(size) <= max(size * 1.25 + 1, 65536)


@pytest.mark.parametrize(
    "ref",
    [
        SlotRef(9, 0, 1),
        SlotRef(1, -1, 1),
        SlotRef(1, 0, 1 << 40),
        SlotRef(1, 65536, 1),
        SlotRef(1, 0, -5),
    ],
)
def test_rejects_references_outside_of_a_slot(ref: SlotRef) -> None:
    arena, lent = Arena(), LentSlots()
    view = arena.allocate(100)
    lend(arena, lent, view)
    with pytest.raises(ValueError, match="outside"):
        lent.view(ref)
    with pytest.raises(ValueError, match="outside"):
        arena.reclaim(ref)


def test_rejects_memory_that_its_owner_could_shrink() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(ValueError, match="sealed"):
        LentSlots().add(1, 4096, fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_slot_cannot_be_shrunk() -> None:
    arena = Arena()
    view = arena.allocate(MB)
    found = arena.find(view)
    assert found is not None
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(found[0].fd, 0)


def test_rejects_the_release_of_a_slot_that_is_not_lent() -> None:
    arena = Arena()
    arena.allocate(100)
    with pytest.raises(ValueError, match="not lent"):
        arena.release(1)
