from __future__ import annotations

from naiad.shm.arena import Arena, address_of
from naiad.shm.directory import SharedRange, SlotDirectory

MB = 1 << 20


def test_finds_the_range_that_contains_the_whole_view() -> None:
    directory = SlotDirectory()
    directory.add(1000, 100, 7)
    directory.add(3000, 100, 8)
    shared = directory.find(1010, 90)
    assert shared is not None
    assert (shared.start, shared.fd) == (1000, 7)
    assert directory.find(1010, 91) is None
    assert directory.find(999, 1) is None
    assert directory.find(2000, 1) is None


def test_calls_watchers_when_a_range_is_removed() -> None:
    directory = SlotDirectory()
    directory.add(1000, 100, 7)
    gone: list[SharedRange] = []
    shared = directory.find(1000, 1)
    assert shared is not None
    shared.watchers.append(gone.append)
    directory.remove(1000)
    assert gone == [shared]
    assert directory.find(1000, 1) is None
    assert len(directory) == 0


def test_an_arena_lists_exactly_its_slots() -> None:
    directory, now_ns = SlotDirectory(), 0
    arena = Arena(lambda: now_ns, directory)
    view = arena.allocate(MB)
    assert directory.find(address_of(view), MB) is not None
    del view
    now_ns = 10
    assert len(arena.trim(5)) == 0
    now_ns = 20
    assert len(arena.trim(5)) == 1
    assert len(directory) == 0
