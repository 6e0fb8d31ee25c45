"""One end of a channel: turns messages into bytes and descriptors and back, and moves large tensors
through shared memory.

It does no I/O: `pack` returns what to send, `feed` gets what was received. Both ends use it, so
both follow the same rules: `Slots` and `Released` are handled here and seen by nobody else, and
every tensor that leaves here holds memory, never a `SlotRef`.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from naiad.core.tensor import SlotRef, Tensor
from naiad.errors import NaiadError, invalid_arg, unavailable
from naiad.ipc.messages import Control, Message, Released, Slots, Unmapped
from naiad.shm.arena import INLINE_MAX_BYTES, Arena, LentSlots, Slot, address_of
from naiad.shm.foreign import ForeignSlots

RETRY_AFTER_S = 1
M = TypeVar("M")
Decoded = TypeVar("Decoded", covariant=True)
_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 1 << 31
MAX_TENSORS = 8192
MAX_WORKER_MESSAGE_BYTES = MAX_TENSORS * INLINE_MAX_BYTES
"""More than a message of a worker has, because large tensors travel in slots. `Control` may have
the files of a model."""
_CONTROL_TAG: Any = Control.__struct_config__.tag
_TAG_AT = 5
"""Where the tag is: after the length and the head of a short array."""
_OWN_MESSAGES: frozenset[type] = frozenset({Slots, Released, Unmapped})
_LOST = -1
"""Stands for the rest of a message's descriptors, for which this process had no room."""


NOT_DECODED = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoders of msgspec raise: for bad bytes, bad text, and values inside of too many others."""


class BrokenLinkError(Exception):
    """The peer sent something that it must not send. The channel cannot be used any more."""


class LostDescriptorError(Exception):
    """This process had no room for the descriptor that came with a message."""


class Decoder(Protocol[Decoded]):
    """A decoder of msgspec, or what stands in for one."""

    def decode(self, data: bytes | memoryview, /) -> Decoded:
        """Raises NOT_DECODED."""
        ...


class Link(Generic[M]):
    def __init__(self, decoder: Decoder[M], arena: Arena) -> None:
        self.arena = arena
        self.lent = LentSlots(arena.directory)
        self._foreign = ForeignSlots(arena.directory) if arena.directory is not None else None
        self._decoder = decoder
        self._keeps_encoded = False
        self._may_lack_descriptors = False
        self._unmapped: set[int] = set()
        """Slots of the peer whose descriptors were lost."""
        self._unreported: list[int] = []
        """Those of which the peer has not heard."""
        self._refused: list[int] = []
        """Leases of such slots, which end without a view."""
        self._encoder = msgspec.msgpack.Encoder()
        self.max_bytes = MAX_MESSAGE_BYTES
        """The longest message that the peer may send, `Control` excepted."""
        self.max_out_bytes = MAX_MESSAGE_BYTES
        """The longest that it accepts from here."""
        self.incoming = bytearray()
        """What has come of a message that is not complete."""
        self._fds: deque[int] = deque()
        self._announced: set[int] = set()
        self._new: list[tuple[int, int, int]] = []
        self._dropped: list[int] = []
        self._leases: dict[int, int] = {}

    def keep_encoded(self, decoder: Decoder[Any]) -> None:
        """Messages are decoded by `decoder` from now on, and may contain msgspec.Raw, which refers
        to the bytes of its message."""
        self._decoder = decoder
        self._keeps_encoded = True

    def tolerate_lost_descriptors(self) -> None:
        """When this process has no descriptors left, only the tensors and connections that needed
        them are lost. Both ends must agree, because the peer hears of it."""
        self._may_lack_descriptors = True

    # Out.

    def place(self, tensors: list[Tensor]) -> None:
        """Replaces large tensors in the list by references into shared memory. Tensors that are
        there already are not copied.

        Raises NaiadError when there is no shared memory left; the list cannot be used then.
        """
        try:
            for at, tensor in enumerate(tensors):
                data = tensor.data
                if len(data) > INLINE_MAX_BYTES or (
                    isinstance(data, memoryview) and data.nbytes > INLINE_MAX_BYTES
                ):
                    view = (data if isinstance(data, memoryview) else memoryview(data)).cast("B")
                    # Read-only memory has more than one reader, and the peer may write to the
                    # memory that it gets.
                    ref = (
                        self._copy(view) if view.readonly else self._share(view) or self._copy(view)
                    )
                    tensors[at] = _with_ref(tensor, ref)
        except NaiadError:
            self.unplace(tensors)
            raise

    def unplace(self, tensors: list[Tensor]) -> None:
        """Undoes `place` for a message that is not sent: memory that was lent for it comes back,
        and the references become empty tensors."""
        for at, tensor in enumerate(tensors):
            ref: Any = tensor.data
            if isinstance(ref, SlotRef):
                tensors[at] = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
                if not ref.is_mine:
                    self._on_released(Released([ref.slot]))

    def copy_if_kept(self, tensors: list[Tensor]) -> None:
        """Copies memory that is handed back while somebody here still refers to it: a model may
        keep an input and write to it later.

        Raises NaiadError as `place` does.
        """
        for at, tensor in enumerate(tensors):
            ref: Any = tensor.data
            if isinstance(ref, SlotRef) and ref.is_mine and self.lent.live_views(ref.slot) > 0:
                tensors[at] = _with_ref(tensor, self._copy(self.lent.peek(ref)))

    def _share(self, view: memoryview) -> SlotRef | None:
        """A reference to the shared memory that holds the view already: the peer's, our own, or
        another peer's. None when it is in no shared memory."""
        ref = self.lent.find(view)
        if ref is not None:
            return ref
        place = self.arena.find(view)
        if place is not None:
            return self._lend(*place, view.nbytes)
        return self._foreign.lend(view, address_of(view)) if self._foreign is not None else None

    def _copy(self, view: memoryview) -> SlotRef:
        try:
            copy = self.arena.allocate(view.nbytes)
        except OSError as error:
            raise unavailable(
                f"no shared memory is left for large tensors: {error}", RETRY_AFTER_S
            ) from error
        copy[:] = view
        place = self.arena.find(copy)
        assert place is not None
        return self._lend(*place, view.nbytes)

    def _lend(self, slot: Slot, offset: int, size: int) -> SlotRef:
        self.arena.lend(slot)
        self._leases[slot.id] = self._leases.get(slot.id, 0) + 1
        if slot.id not in self._announced:
            self._announced.add(slot.id)
            self._new.append((slot.id, slot.size, slot.fd))
        return SlotRef(slot.id, offset, size)

    def drop_slots(self, ids: Iterable[int]) -> None:
        """The arena has freed these slots; the next message tells the peer."""
        for id in ids:
            if id in self._announced:
                self._announced.discard(id)
                self._dropped.append(id)

    def pack(self, message: Message, buffer: bytearray) -> list[int]:
        """Writes the message and what must go with it into `buffer`. Returns descriptors to send
        with it, which the caller still owns. Raises NaiadError if the message is too long for the
        peer; nothing has to be sent then."""
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
        start, end = end, self._append(message, buffer, end)
        if end - start > self.max_out_bytes and message.__class__ is not Control:
            # The slots must still be announced, by the next message.
            if start:
                self._new, self._dropped = new + self._new, dropped + self._dropped
            raise invalid_arg(
                f"a message of {end - start} bytes is longer than {self.max_out_bytes} bytes; "
                "tensors of this size travel in shared memory, texts and parameters do not"
            )
        # After the message: it may hand back, as an output, memory whose lease ends here.
        released = self.lent.pop_released()
        if self._refused:
            released += self._refused
            self._refused = []
        if released:
            end = self._append(Released(released), buffer, end)
        if self._unreported:
            self._append(Unmapped(self._unreported), buffer, end)
            self._unreported = []
        return fds

    def _append(self, message: Message, buffer: bytearray, start: int) -> int:
        self._encoder.encode_into(message, buffer, start + 4)
        end = len(buffer)
        _LENGTH.pack_into(buffer, start, end - start - 4)
        return end

    # In.

    def feed(
        self, data: memoryview, fds: Iterable[int] = (), *, has_lost_fds: bool = False
    ) -> Iterator[M]:
        """Yields complete messages, in order. Each must be handled before the next is requested.
        Raises BrokenLinkError."""
        self._fds.extend(fds)
        if has_lost_fds and self._may_lack_descriptors:
            # The kernel returns at most one message with descriptors at a time, and these are its.
            self._fds.append(_LOST)
        if self.incoming:
            self.incoming += data
            data = memoryview(self.incoming)
        at, end = 0, len(data)
        try:
            while end - at >= 4:
                (size,) = _LENGTH.unpack_from(data, at)
                if end - at - 4 < size:
                    self._check_size(size, data[at + _TAG_AT] if end - at > _TAG_AT else None)
                    break
                # No name may refer to a part of `data` while `incoming` is resized.
                message = self._decoder.decode(
                    bytes(data[at + 4 : at + 4 + size])
                    if self._keeps_encoded
                    else data[at + 4 : at + 4 + size]
                )
                at += 4 + size
                if message.__class__ not in _OWN_MESSAGES:
                    yield message
                elif isinstance(message, Slots):
                    self._on_slots(message)
                elif isinstance(message, Released):
                    self._on_released(message)
                elif isinstance(message, Unmapped):
                    self._on_unmapped(message)
        except NOT_DECODED as error:
            raise BrokenLinkError(str(error)) from error
        if (at == 0) if self.incoming else (at == end):
            # Nothing is left over, or the message is still incomplete and already in `incoming`.
            data.release()
            return
        rest = bytes(data[at:])
        data.release()
        self.incoming[:] = rest

    def _check_size(self, size: int, tag: int | None) -> None:
        """`tag` is None if it has not come yet."""
        if size > MAX_MESSAGE_BYTES or (
            size > self.max_bytes and tag is not None and tag != _CONTROL_TAG
        ):
            raise BrokenLinkError(f"message of {size} bytes")

    def resolve(self, tensors: list[Tensor]) -> None:
        """Replaces references by views of the memory. Raises BrokenLinkError, and NaiadError where
        descriptors were lost."""
        if self._unmapped:
            self._refuse_unmapped(tensors)
        for tensor in tensors:
            ref: Any = tensor.data
            if isinstance(ref, SlotRef):
                try:
                    tensor.data = self._reclaim(ref) if ref.is_mine else self.lent.view(ref)
                except ValueError as error:
                    raise BrokenLinkError(str(error)) from error

    def _refuse_unmapped(self, tensors: list[Tensor]) -> None:
        """Raises NaiadError if a tensor is in a slot that could not be mapped."""
        references: list[Any] = [tensor.data for tensor in tensors]
        refs = [ref for ref in references if isinstance(ref, SlotRef) and not ref.is_mine]
        if not self._unmapped.isdisjoint(ref.slot for ref in refs):
            self._refused += [ref.slot for ref in refs]
            raise unavailable(
                f"no shared memory is left for large tensors: {os.strerror(errno.EMFILE)}",
                RETRY_AFTER_S,
            )

    def _reclaim(self, ref: SlotRef) -> memoryview:
        if ref.slot < 0 and self._foreign is not None:
            return self._foreign.reclaim(ref)
        return self.arena.reclaim(ref)

    def _on_slots(self, message: Slots) -> None:
        for id in message.dropped:
            self.lent.drop(id)
            self._unmapped.discard(id)
        for id, size in zip(message.ids, message.sizes, strict=True):
            if self._may_lack_descriptors and self._fds and self._fds[0] == _LOST:
                self._unmapped.add(id)
                self._unreported.append(id)
                continue
            if not self._fds:
                raise BrokenLinkError("slot without a descriptor")
            self.lent.add(id, size, self._fds.popleft())
            self._unmapped.discard(id)
        self._end_descriptors()

    def _on_released(self, message: Released) -> None:
        for id in message.slots:
            if id < 0 and self._foreign is not None:
                self._foreign.release(id)
                continue
            left = self._leases.get(id, 0)
            if left == 0:
                raise BrokenLinkError(f"release of slot {id} that the peer does not hold")
            self._leases[id] = left - 1
            self.arena.release(id)

    def _on_unmapped(self, message: Unmapped) -> None:
        self._announced.difference_update(message.slots)
        if self._foreign is not None:
            for id in message.slots:
                self._foreign.announce_again(id)

    def pop_fd(self) -> int:
        """Removes and returns the next descriptor that came with a message other than `Slots`."""
        if self._may_lack_descriptors and self._fds and self._fds[0] == _LOST:
            self._fds.popleft()
            raise LostDescriptorError("the descriptor of a message was lost")
        if not self._fds:
            raise BrokenLinkError("message without its descriptor")
        fd = self._fds.popleft()
        self._end_descriptors()
        return fd

    def _end_descriptors(self) -> None:
        """The message has all descriptors that have come for it."""
        if self._fds and self._fds[0] == _LOST:
            self._fds.popleft()

    def close(self) -> None:
        """The peer is gone: memory that was lent to it comes back, and its own memory lives on only
        in views that exist here."""
        for id, leases in self._leases.items():
            if leases:
                self.arena.release(id, leases)
        self._leases.clear()
        if self._foreign is not None:
            self._foreign.close()
        self.lent.close()
        while self._fds:
            fd = self._fds.popleft()
            if fd != _LOST:
                os.close(fd)


def _with_ref(tensor: Tensor, ref: SlotRef) -> Tensor:
    data: Any = ref
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data)
