"""One end of a channel: turns messages into bytes and descriptors and back, and moves large tensors
through shared memory.

Free of I/O decisions: `pack` gives what to send, `feed` takes what was received. Both ends use it,
so both follow the same rules: `Slots` and `Released` are handled here and seen by nobody else;
every tensor that leaves here holds memory, never a `SlotRef`.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from naiad.core.tensor import SlotRef, Tensor
from naiad.errors import NaiadError, unavailable
from naiad.ipc.messages import Message, Released, Slots
from naiad.shm.arena import INLINE_MAX_BYTES, Arena, LentSlots, Slot, address_of
from naiad.shm.foreign import ForeignSlots

RETRY_AFTER_S = 1
M = TypeVar("M")
_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 1 << 31


class BrokenLinkError(Exception):
    """The peer sent something that it must not: the channel cannot be used any more."""


class Link(Generic[M]):
    def __init__(self, decoder: msgspec.msgpack.Decoder[M], arena: Arena) -> None:
        self.arena = arena
        self.lent = LentSlots(arena.directory)
        self._foreign = ForeignSlots(arena.directory) if arena.directory is not None else None
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._incoming = bytearray()
        self._fds: deque[int] = deque()
        self._announced: set[int] = set()
        self._new: list[tuple[int, int, int]] = []
        self._dropped: list[int] = []
        self._leases: dict[int, int] = {}

    # Out.

    def place(self, tensors: list[Tensor]) -> None:
        """Replaces large tensors in the list by references into shared memory, copying only what is
        not already there.

        Raises NaiadError when none can be had; the list is of no use then.
        """
        try:
            for at, tensor in enumerate(tensors):
                data = tensor.data
                if len(data) > INLINE_MAX_BYTES or (
                    isinstance(data, memoryview) and data.nbytes > INLINE_MAX_BYTES
                ):
                    view = (data if isinstance(data, memoryview) else memoryview(data)).cast("B")
                    # Read-only memory has more than one reader, and the peer may write to what it
                    # gets.
                    ref = (
                        self._copy(view) if view.readonly else self._share(view) or self._copy(view)
                    )
                    tensors[at] = _with_ref(tensor, ref)
        except NaiadError:
            self.unplace(tensors)
            raise

    def unplace(self, tensors: list[Tensor]) -> None:
        """The message that was to refer to them is not sent: memory that was lent for it comes
        back, and the references are gone."""
        for at, tensor in enumerate(tensors):
            ref: Any = tensor.data
            if isinstance(ref, SlotRef):
                tensors[at] = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
                if not ref.is_mine:
                    self._take_released(Released([ref.slot]))

    def copy_if_kept(self, tensors: list[Tensor]) -> None:
        """Memory that is handed back must not be in anybody's hands here: a model may keep an input
        and write to it later.

        Raises NaiadError as `place` does.
        """
        for at, tensor in enumerate(tensors):
            ref: Any = tensor.data
            if isinstance(ref, SlotRef) and ref.is_mine and self.lent.live_views(ref.slot) > 0:
                tensors[at] = _with_ref(tensor, self._copy(self.lent.peek(ref)))

    def _share(self, view: memoryview) -> SlotRef | None:
        """Where it lies already: in the peer's memory, in ours, or in another peer's."""
        ref = self.lent.find(view)
        if ref is not None:
            return ref
        found = self.arena.find(view)
        if found is not None:
            return self._lend(*found, view.nbytes)
        return self._foreign.lend(view, address_of(view)) if self._foreign is not None else None

    def _copy(self, view: memoryview) -> SlotRef:
        try:
            keep = self.arena.allocate(view.nbytes)
        except OSError as error:
            raise unavailable(
                f"no shared memory for large tensors can be had: {error}", RETRY_AFTER_S
            ) from error
        keep[:] = view
        found = self.arena.find(keep)
        assert found is not None
        return self._lend(*found, view.nbytes)

    def _lend(self, slot: Slot, offset: int, size: int) -> SlotRef:
        self.arena.lend(slot)
        self._leases[slot.id] = self._leases.get(slot.id, 0) + 1
        if slot.id not in self._announced:
            self._announced.add(slot.id)
            self._new.append((slot.id, slot.size, slot.fd))
        return SlotRef(slot.id, offset, size)

    def drop_slots(self, ids: Iterable[int]) -> None:
        """The arena gave these back: the peer is told with the next message."""
        for id in ids:
            if id in self._announced:
                self._announced.discard(id)
                self._dropped.append(id)

    def pack(self, message: Message, buffer: bytearray) -> list[int]:
        """Writes the message and what must go with it into `buffer`; returns descriptors to pass
        along (still ours)."""
        fds: list[int] = []
        end = 0
        foreign = self._foreign
        if foreign is not None and (foreign.new or foreign.dropped):
            self._new += foreign.new
            self._dropped += foreign.dropped
            foreign.new.clear()
            foreign.dropped.clear()
        if self._new or self._dropped:
            new, self._new = self._new, []
            dropped, self._dropped = self._dropped, []
            fds = [fd for _, _, fd in new]
            end = self._append(
                Slots([id for id, _, _ in new], [size for _, size, _ in new], dropped), buffer, end
            )
        end = self._append(message, buffer, end)
        # After the message: it may hand back, as its answer, memory whose lease ends here.
        released = self.lent.pop_released()
        if released:
            self._append(Released(released), buffer, end)
        return fds

    def _append(self, message: Message, buffer: bytearray, start: int) -> int:
        self._encoder.encode_into(message, buffer, start + 4)
        end = len(buffer)
        _LENGTH.pack_into(buffer, start, end - start - 4)
        return end

    # In.

    def feed(self, data: memoryview, fds: Iterable[int] = ()) -> Iterator[M]:
        """Complete messages, in order; each must be handled before the next is asked for. Raises
        BrokenLinkError."""
        self._fds.extend(fds)
        if self._incoming:
            self._incoming += data
            data = memoryview(self._incoming)
        at, end = 0, len(data)
        try:
            while end - at >= 4:
                (size,) = _LENGTH.unpack_from(data, at)
                if size > MAX_MESSAGE_BYTES:
                    raise BrokenLinkError(f"message of {size} bytes")
                if end - at - 4 < size:
                    break
                message = self._decoder.decode(data[at + 4 : at + 4 + size])
                at += 4 + size
                if isinstance(message, Slots):
                    self._take_slots(message)
                elif isinstance(message, Released):
                    self._take_released(message)
                else:
                    yield message
        except (msgspec.DecodeError, ValueError) as error:
            raise BrokenLinkError(str(error)) from error
        if (at == 0) if self._incoming else (at == end):
            # nothing is left over, or still incomplete: what came is already in place
            data.release()
            return
        rest = bytes(data[at:])
        data.release()
        self._incoming[:] = rest

    def resolve(self, tensors: list[Tensor]) -> None:
        """Replaces references by views. Raises BrokenLinkError."""
        for tensor in tensors:
            ref: Any = tensor.data
            if isinstance(ref, SlotRef):
                try:
                    tensor.data = self._take_back(ref) if ref.is_mine else self.lent.view(ref)
                except ValueError as error:
                    raise BrokenLinkError(str(error)) from error

    def _take_back(self, ref: SlotRef) -> memoryview:
        if ref.slot < 0 and self._foreign is not None:
            return self._foreign.reclaim(ref)
        return self.arena.reclaim(ref)

    def _take_slots(self, message: Slots) -> None:
        for id in message.dropped:
            self.lent.drop(id)
        for id, size in zip(message.ids, message.sizes, strict=True):
            if not self._fds:
                raise BrokenLinkError("slot without a descriptor")
            self.lent.add(id, size, self._fds.popleft())

    def _take_released(self, message: Released) -> None:
        for id in message.slots:
            if id < 0 and self._foreign is not None:
                self._foreign.release(id)
                continue
            left = self._leases.get(id, 0)
            if left == 0:
                raise BrokenLinkError(f"release of slot {id} that the peer does not hold")
            self._leases[id] = left - 1
            self.arena.release(id)

    def take_fd(self) -> int:
        """The next descriptor that came with a message other than `Slots`."""
        if not self._fds:
            raise BrokenLinkError("message without its descriptor")
        return self._fds.popleft()

    def close(self) -> None:
        """The peer is gone: what it had been lent is ours again, what it lent us lives on in our
        views only."""
        for id, leases in self._leases.items():
            if leases:
                self.arena.release(id, leases)
        self._leases.clear()
        if self._foreign is not None:
            self._foreign.close()
        self.lent.close()
        while self._fds:
            os.close(self._fds.popleft())


def _with_ref(tensor: Tensor, ref: SlotRef) -> Tensor:
    data: Any = ref
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data)
