"""Shared memory between the server and a worker, for tensors that are too large for a message.

A slot is one memfd that both sides map. Its owner allocates it, lends it (a `SlotRef` in a message)
and reuses it when no view of it is left on either side. Views are numpy arrays over the mapping.
Weak references report when a view is gone, so slots are never freed by hand.
Rules: slots have no names and are sealed against shrinking, because a truncated mapping would kill
       its reader. Every reference is bounds-checked.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from naiad.core.tensor import SlotRef
from naiad.shm.directory import SlotDirectory

Bytes1d: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

INLINE_MAX_BYTES = 32 * 1024
"""Tensors up to this size are part of the message: two copies cost less than managing a slot."""
MIN_SLOT_BYTES = 64 * 1024
SLOT_IDLE_NS = 5_000_000_000
"""A slot that was free for this long is given back to the system."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Slot:
    __slots__ = ("address", "fd", "free_since_ns", "id", "leases", "local_views", "mapping", "size")

    def __init__(self, id: int, size: int, fd: int, mapping: mmap.mmap) -> None:
        self.id = id
        self.size = size
        self.fd = fd
        self.mapping = mapping
        self.address = address_of(mapping)
        self.local_views = 0
        self.leases = 0
        self.free_since_ns = 0


def address_of(data: memoryview | mmap.mmap) -> int:
    if len(data) and not (isinstance(data, memoryview) and data.readonly):
        # This takes a sixth of the time that numpy needs.
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def _size_class(num_bytes: int) -> int:
    """Rounds up to 1, 1.25, 1.5 or 1.75 times a power of two.

    There are few classes, and at most a quarter of a slot is unused. The kernel commits no memory
    for pages that are never touched.
    """
    if num_bytes <= MIN_SLOT_BYTES:
        return MIN_SLOT_BYTES
    quarter = 1 << max((num_bytes - 1).bit_length() - 3, 14)
    return -(-num_bytes // quarter) * quarter


class _Views:
    """Creates views of slots and records in `gone` when one has lost its last reference.

    The callback of a weak reference may run in any thread at any point, so it only appends to a
    deque.
    """

    def __init__(self) -> None:
        self.gone: deque[int] = deque()
        self._watched: dict[int, weakref.ref[Bytes1d]] = {}

    def make(self, slot: int, mapping: mmap.mmap, offset: int, size: int) -> memoryview:
        root: Bytes1d = np.frombuffer(mapping, np.uint8, size, offset)
        key = id(root)
        gone, watched = self.gone, self._watched

        def on_death(_: object) -> None:
            del watched[key]
            gone.append(slot)

        watched[key] = weakref.ref(root, on_death)
        return root.data


class Arena:
    """The owner's side of shared memory.

    It is thread-safe, because several threads of a worker may send responses.
    """

    def __init__(
        self, now_ns: Callable[[], int] = time.monotonic_ns, directory: SlotDirectory | None = None
    ) -> None:
        self._now_ns = now_ns
        self.directory = directory
        """The directory of all shared memory of the server; None in a worker."""
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._slots: dict[int, Slot] = {}
        self._free: dict[int, list[Slot]] = {}
        self._views = _Views()
        self._addresses: list[int] = []
        self._by_address: list[Slot] = []

    @property
    def committed_bytes(self) -> int:
        return sum(slot.size for slot in self._slots.values())

    def allocate(self, num_bytes: int) -> memoryview:
        """Returns writable memory with arbitrary contents.

        The slot is free again when this view and all views made from it are gone, here and in the
        peers.
        """
        size = _size_class(num_bytes)
        with self._lock:
            self._collect()
            free = self._free.get(size)
            slot = free.pop() if free else self._create(size)
            slot.local_views = 1
        return self._views.make(slot.id, slot.mapping, 0, num_bytes)

    def find(self, data: memoryview) -> tuple[Slot, int] | None:
        """Returns the slot that contains this memory and the offset in it.

        Returns None if the memory is not in this arena.
        """
        if not self._addresses:
            return None
        address = address_of(data)
        with self._lock:
            index = bisect_right(self._addresses, address) - 1
            if index < 0:
                return None
            slot = self._by_address[index]
        offset = address - slot.address
        return (slot, offset) if offset + data.nbytes <= slot.size else None

    def slot(self, id: int) -> Slot | None:
        return self._slots.get(id)

    def reclaim(self, ref: SlotRef) -> memoryview:
        """Returns a view of a slot of this arena that a peer returns as its output.

        Raises ValueError for a bad reference.
        """
        slot = self._slots.get(ref.slot)
        if slot is None or ref.offset < 0 or ref.size < 0 or ref.offset + ref.size > slot.size:
            raise ValueError(f"reference outside of slot {ref.slot}")
        with self._lock:
            slot.local_views += 1
        return self._views.make(slot.id, slot.mapping, ref.offset, ref.size)

    def lend(self, slot: Slot) -> None:
        """Must be called before the message that refers to the slot is sent."""
        with self._lock:
            slot.leases += 1

    def release(self, id: int, leases: int = 1) -> None:
        """Ends leases of a peer, which has no view of the slot any more or has died.

        Raises ValueError if the slot is not lent.
        """
        with self._lock:
            slot = self._slots.get(id)
            if slot is None or slot.leases < leases:
                raise ValueError(f"release of slot {id} that is not lent")
            self._collect()
            slot.leases -= leases
            self._free_if_unused(slot)

    def trim(self, idle_ns: int) -> list[int]:
        """Frees the memory of slots that were unused for at least `idle_ns`.

        Returns their ids. The caller must send them to the peers, so that these unmap the slots.
        """
        dropped: list[int] = []
        with self._lock:
            self._collect()
            before = self._now_ns() - idle_ns
            for slots in self._free.values():
                while slots and slots[0].free_since_ns <= before:
                    slot = slots.pop(0)
                    dropped.append(slot.id)
                    self._forget(slot)
        return dropped

    def close(self) -> None:
        with self._lock:
            for slot in list(self._slots.values()):
                self._forget(slot)
            self._free.clear()

    def _create(self, size: int) -> Slot:
        fd = os.memfd_create("naiad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            slot = Slot(next(self._ids), size, fd, mmap.mmap(fd, size))
        except BaseException:
            os.close(fd)
            raise
        self._slots[slot.id] = slot
        index = bisect_right(self._addresses, slot.address)
        self._addresses.insert(index, slot.address)
        self._by_address.insert(index, slot)
        if self.directory is not None:
            self.directory.add(slot.address, slot.size, slot.fd)
        return slot

    def _forget(self, slot: Slot) -> None:
        """Closes the slot. The mapping itself is removed with its last view."""
        del self._slots[slot.id]
        index = self._by_address.index(slot)
        del self._addresses[index], self._by_address[index]
        if self.directory is not None:
            self.directory.remove(slot.address)
        os.close(slot.fd)

    def _collect(self) -> None:
        gone = self._views.gone
        while gone:
            slot = self._slots.get(gone.popleft())
            if slot is not None:
                slot.local_views -= 1
                self._free_if_unused(slot)

    def _free_if_unused(self, slot: Slot) -> None:
        if slot.local_views == 0 and slot.leases == 0:
            slot.free_since_ns = self._now_ns()
            self._free.setdefault(slot.size, []).append(slot)


class LentSlots:
    """The borrower's side: maps the slots that the peer announced and creates views of them.

    It also collects the leases that have ended, for the peer.
    """

    def __init__(self, directory: SlotDirectory | None = None) -> None:
        self._directory = directory
        self._mappings: dict[int, mmap.mmap] = {}
        self._fds: dict[int, int] = {}
        self._live: dict[int, int] = {}
        self._views = _Views()
        self._addresses: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()

    def add(self, id: int, size: int, fd: int) -> None:
        """Maps a slot and takes ownership of its descriptor.

        Raises ValueError if the peer could shrink the slot, or it is smaller than announced.
        """
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError(f"slot {id} is not sealed against shrinking")
            if size <= 0 or os.fstat(fd).st_size < size:
                raise ValueError(f"slot {id} is smaller than announced")
            mapping = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        self.drop(id)
        self._mappings[id] = mapping
        self._fds[id] = fd
        start = address_of(mapping)
        self._addresses.append((start, start + size, id))
        if self._directory is not None:
            self._directory.add(start, size, fd)

    def drop(self, id: int) -> None:
        if self._mappings.pop(id, None) is None:
            return
        if self._directory is not None:
            self._directory.remove(next(start for start, _, slot in self._addresses if slot == id))
        os.close(self._fds.pop(id))
        self._addresses = [entry for entry in self._addresses if entry[2] != id]

    def close(self) -> None:
        for id in list(self._mappings):
            self.drop(id)

    def view(self, ref: SlotRef) -> memoryview:
        """Returns a view, which is one lease: it ends when all views made from it are gone.

        Raises ValueError for a bad reference.
        """
        mapping = self._mappings.get(ref.slot)
        end = ref.offset + ref.size
        if mapping is None or ref.offset < 0 or ref.size < 0 or end > len(mapping):
            raise ValueError(f"reference outside of slot {ref.slot}")
        with self._lock:
            self._live[ref.slot] = self._live.get(ref.slot, 0) + 1
        return self._views.make(ref.slot, mapping, ref.offset, ref.size)

    def find(self, data: memoryview) -> SlotRef | None:
        """Returns a reference to return this memory to the peer that owns it, without a copy.

        Returns None if the memory is not the peer's.
        """
        if not self._addresses:
            return None
        start = address_of(data)
        end = start + data.nbytes
        for slot_start, slot_end, id in self._addresses:
            if slot_start <= start and end <= slot_end:
                return SlotRef(id, start - slot_start, data.nbytes, is_mine=True)
        return None

    def peek(self, ref: SlotRef) -> memoryview:
        """Returns memory of a slot without a lease. The caller must copy from it at once."""
        return memoryview(self._mappings[ref.slot])[ref.offset : ref.offset + ref.size]

    def live_views(self, id: int) -> int:
        """Returns how many leases of a slot have not ended.

        Unlike a count kept by the caller of `pop_released`, this is exact at any time.
        """
        with self._lock:
            return self._live.get(id, 0) - self._views.gone.count(id)

    def pop_released(self) -> list[int]:
        """Returns the slot ids of the leases that ended since the last call, one per lease."""
        gone = self._views.gone
        if not gone:
            return []
        released: list[int] = []
        with self._lock:
            while gone:
                id = gone.popleft()
                released.append(id)
                self._live[id] -= 1
        return released
