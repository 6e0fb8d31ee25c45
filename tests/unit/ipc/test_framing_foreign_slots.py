"""A tensor of one worker handed on to another one: the same memory, and its owner reuses it only
when nobody has it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest

from naiad.core.tensor import SlotRef, Tensor
from naiad.ipc.framing import BrokenLinkError, Link
from naiad.ipc.messages import Execute, Executed, Message, Ping, Released, ToServer, ToWorker
from naiad.ipc.work import WorkRequest, WorkResponse
from naiad.shm.arena import Arena, address_of
from naiad.shm.directory import SlotDirectory

LARGE = 100_000


class Pair:
    """The two ends of one worker's channel."""

    def __init__(self, directory: SlotDirectory) -> None:
        self.server: Link[ToServer] = Link(
            msgspec.msgpack.Decoder(ToServer), Arena(directory=directory)
        )
        self.worker: Link[ToWorker] = Link(msgspec.msgpack.Decoder(ToWorker), Arena())

    def to_worker(self, message: Message) -> list[ToWorker]:
        return list(self._feed(self.server, self.worker, message))

    def to_server(self, *outputs: Tensor) -> list[Tensor]:
        """In an answer, which is looked at before the next message is."""
        received: list[Tensor] = []
        answer = Executed(1, 0, 0, [WorkResponse(list(outputs))])
        for message in self._feed(self.worker, self.server, answer):
            assert isinstance(message, Executed)
            response = message.responses[0]
            assert response is not None
            self.server.resolve(response.outputs)
            received += response.outputs
        return received

    @staticmethod
    def _feed(source: Link, target: Link, message: Message) -> Iterator:  # type: ignore[type-arg]
        buffer = bytearray()
        fds = [os.dup(fd) for fd in source.pack(message, buffer)]
        return target.feed(memoryview(bytes(buffer)), fds)

    def answer(self, data: bytes) -> Tensor:
        """The worker answers with this; what the server then has."""
        outputs = [Tensor("Y", "UINT8", [len(data)], data)]
        self.worker.place(outputs)
        return self.to_server(*outputs)[0]

    def execute(self, tensor: Tensor) -> tuple[SlotRef, Tensor]:
        """What the message says, and what the worker then has."""
        inputs = [Tensor("X", tensor.datatype, tensor.shape, tensor.data)]
        self.server.place(inputs)
        ref = inputs[0].data
        assert isinstance(ref, SlotRef)
        (message,) = self.to_worker(Execute(1, [WorkRequest(1, "", inputs)]))
        assert isinstance(message, Execute)
        self.worker.resolve(message.requests[0].inputs)
        return ref, message.requests[0].inputs[0]


@pytest.fixture
def directory() -> SlotDirectory:
    return SlotDirectory()


@pytest.fixture
def first(directory: SlotDirectory) -> Pair:
    return Pair(directory)


@pytest.fixture
def second(directory: SlotDirectory) -> Pair:
    return Pair(directory)


def slots_in_use(pair: Pair) -> int:
    """Counts the slots of the worker's own arena that are in use."""
    pair.to_worker(Ping(1))
    return sum(
        slot.leases > 0 or slot.local_views > 0 for slot in pair.worker.arena._slots.values()
    )


def test_the_second_worker_sees_the_memory_of_the_first(first: Pair, second: Pair) -> None:
    data = os.urandom(LARGE)
    ref, received = second.execute(first.answer(data))
    assert ref.slot < 0
    assert second.server.arena.committed_bytes == 0
    assert bytes(received.data) == data
    memoryview(received.data)[0] ^= 0xFF
    (slot,) = first.worker.arena._slots.values()
    assert slot.mapping[0] == data[0] ^ 0xFF


def test_the_owner_reuses_it_only_when_nobody_has_it(first: Pair, second: Pair) -> None:
    tensor = first.answer(os.urandom(LARGE))
    _, received = second.execute(tensor)
    del tensor
    assert slots_in_use(first) == 1
    del received
    assert slots_in_use(first) == 1  # the server has not been told
    second.to_server()
    assert slots_in_use(first) == 0


def test_a_slot_is_announced_once(first: Pair, second: Pair) -> None:
    refs = set()
    for _ in range(3):
        tensor = first.answer(os.urandom(LARGE))
        ref, received = second.execute(tensor)
        refs.add(ref.slot)
        del received, tensor
        second.to_server()
        first.to_worker(Ping(1))
    assert refs == {-1}


def test_a_foreign_slot_may_come_back_as_an_output(first: Pair, second: Pair) -> None:
    data = os.urandom(LARGE)
    _, received = second.execute(first.answer(data))
    outputs = [Tensor("Z", "UINT8", [LARGE], received.data)]
    second.worker.place(outputs)
    del received
    ref = outputs[0].data
    assert isinstance(ref, SlotRef)
    assert ref.is_mine
    (returned,) = second.to_server(*outputs)
    assert bytes(returned.data) == data
    assert slots_in_use(first) == 1
    del returned
    assert slots_in_use(first) == 0


def test_memory_of_another_models_arena_is_handed_on_too(
    directory: SlotDirectory, second: Pair
) -> None:
    arena = Arena(directory=directory)
    view = arena.allocate(LARGE)
    view[:] = os.urandom(LARGE)
    ref, received = second.execute(Tensor("X", "UINT8", [LARGE], view))
    assert ref.slot < 0
    assert bytes(received.data) == bytes(view)
    del view
    arena._collect()
    (slot,) = arena._slots.values()
    assert slot.local_views == 1
    del received
    second.to_server()
    arena._collect()
    assert slot.local_views == 0


def test_memory_with_several_readers_is_copied(first: Pair, second: Pair) -> None:
    data = os.urandom(LARGE)
    tensor = first.answer(data)
    tensor.data = memoryview(tensor.data).toreadonly()
    ref, received = second.execute(tensor)
    assert ref.slot > 0
    memoryview(received.data)[0] ^= 0xFF
    assert bytes(tensor.data) == data


def test_the_second_worker_keeps_what_it_has_when_the_first_dies(first: Pair, second: Pair) -> None:
    data = os.urandom(LARGE)
    tensor = first.answer(data)
    _, received = second.execute(tensor)
    first.server.close()
    second.to_worker(Ping(1))
    assert bytes(received.data) == data
    assert second.worker.lent._mappings == {}
    del received
    second.to_server()
    # Views of memory that nobody owns any more are not found, and so copied.
    ref, _ = second.execute(tensor)
    assert ref.slot > 0


def test_the_death_of_the_second_worker_frees_it(
    first: Pair, second: Pair, directory: SlotDirectory
) -> None:
    tensor = first.answer(os.urandom(LARGE))
    address = address_of(memoryview(tensor.data))
    second.execute(tensor)
    second.server.close()
    found = directory.find(address, LARGE)
    assert found is not None
    assert found.watchers == []
    del tensor
    assert slots_in_use(first) == 0


BAD = [
    SlotRef(-1, 0, LARGE + 1, is_mine=True),
    SlotRef(-1, -1, 5, is_mine=True),
    SlotRef(-2, 0, 5, is_mine=True),
]


@pytest.mark.parametrize("ref", BAD)
def test_a_bad_reference_breaks_the_link(first: Pair, second: Pair, ref: SlotRef) -> None:
    kept = second.execute(first.answer(os.urandom(LARGE)))
    bad = Tensor("Z", "UINT8", [1], b"")
    bad.data = ref  # type: ignore[assignment]
    with pytest.raises(BrokenLinkError):
        second.to_server(bad)
    assert kept


def test_releasing_a_slot_that_the_peer_does_not_hold_breaks_the_link(second: Pair) -> None:
    with pytest.raises(BrokenLinkError):
        list(second._feed(second.worker, second.server, Released([-1])))
