"""One end of a channel against the other, without sockets; and against garbage."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.tensor import Buffer, SlotRef, Tensor
from naiad.errors import NaiadError
from naiad.ipc.framing import BrokenLinkError, Link
from naiad.ipc.messages import (
    Execute,
    Executed,
    Message,
    Ping,
    Pong,
    Released,
    Slots,
    ToServer,
    ToWorker,
    Unmapped,
)
from naiad.ipc.work import WorkRequest, WorkResponse
from naiad.shm.arena import Arena

LARGE = 100_000


class Pair:
    """A server's and a worker's end; bytes are carried by hand, in pieces of any size."""

    def __init__(self) -> None:
        self.server: Link[ToServer] = Link(msgspec.msgpack.Decoder(ToServer), Arena())
        self.worker: Link[ToWorker] = Link(msgspec.msgpack.Decoder(ToWorker), Arena())

    def to_worker(self, message: Message, piece: int = 1 << 20) -> list[ToWorker]:
        return self._carry(self.server, self.worker, message, piece)

    def to_server(self, message: Message, piece: int = 1 << 20) -> list[ToServer]:
        return self._carry(self.worker, self.server, message, piece)

    @staticmethod
    def _carry(source: Link, target: Link, message: Message, piece: int) -> list:  # type: ignore[type-arg]
        buffer = bytearray()
        fds = [os.dup(fd) for fd in source.pack(message, buffer)]
        received = []
        for at in range(0, len(buffer), piece):
            received += list(
                target.feed(memoryview(bytes(buffer[at : at + piece])), fds if at == 0 else ())
            )
        return received


@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 20])
def test_messages_survive_any_split(piece: int) -> None:
    pair = Pair()
    for number in range(5):
        (message,) = pair.to_worker(Ping(number), piece)
        assert message == Ping(number)


def test_a_large_tensor_travels_by_reference_and_comes_back_uncopied() -> None:
    pair = Pair()
    inputs = [Tensor("X", "UINT8", [LARGE], os.urandom(LARGE))]
    original = bytes(inputs[0].data)
    pair.server.place(inputs)
    assert isinstance(inputs[0].data, SlotRef)
    (message,) = pair.to_worker(Execute(1, [WorkRequest(1, "", inputs)]))
    assert isinstance(message, Execute)
    received = message.requests[0].inputs
    pair.worker.resolve(received)
    outputs = [Tensor("Y", "UINT8", [LARGE], received[0].data)]
    pair.worker.place(outputs)
    message.requests.clear()
    del received
    pair.worker.copy_if_kept(outputs)
    ref = outputs[0].data
    assert isinstance(ref, SlotRef)
    assert ref.is_mine
    (answer,) = pair.to_server(Executed(1, 0, 0, [WorkResponse(outputs)]))
    assert isinstance(answer, Executed)
    response = answer.responses[0]
    assert response is not None
    pair.server.resolve(response.outputs)
    assert bytes(response.outputs[0].data) == original


def received_and_placed(pair: Pair) -> tuple[Buffer, list[Tensor]]:
    """A large input that the worker has received, and is about to send back as its output."""
    inputs = [Tensor("X", "UINT8", [LARGE], bytes(LARGE))]
    pair.server.place(inputs)
    (message,) = pair.to_worker(Execute(1, [WorkRequest(1, "", inputs)]))
    assert isinstance(message, Execute)
    received = message.requests[0].inputs
    pair.worker.resolve(received)
    outputs = [Tensor("Y", "UINT8", [LARGE], received[0].data)]
    pair.worker.place(outputs)
    return received[0].data, outputs


def test_an_input_that_the_model_keeps_is_copied_before_it_goes_back() -> None:
    pair = Pair()
    kept, outputs = received_and_placed(pair)
    pair.worker.copy_if_kept(outputs)
    ref = outputs[0].data
    assert isinstance(ref, SlotRef)
    assert not ref.is_mine
    assert len(kept) == LARGE


def test_an_input_that_is_kept_while_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    kept, outputs = received_and_placed(pair)

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.memfd_create", none_left)
    with pytest.raises(NaiadError, match="no shared memory is left for large tensors"):
        pair.worker.copy_if_kept(outputs)
    assert len(kept) == LARGE


def test_a_peer_that_dies_gives_its_leases_back() -> None:
    pair = Pair()
    inputs = [Tensor("X", "UINT8", [LARGE], bytes(LARGE))]
    pair.server.place(inputs)
    pair.to_worker(Execute(1, [WorkRequest(1, "", inputs)]))
    slot = next(iter(pair.server.arena._slots.values()))
    assert slot.leases == 1
    pair.server.close()
    assert slot.leases == 0


@pytest.mark.parametrize(
    "message",
    [
        Released([5]),
        Slots([1], [4096]),
        Slots([1], []),
        Executed(1, 0, 0, [WorkResponse([Tensor("Y", "FP32", [1], SlotRef(9, 0, 4))])]),  # type: ignore[arg-type]
    ],
)
def test_messages_that_a_worker_must_not_send_break_the_link(message: Message) -> None:
    pair = Pair()

    def receive() -> None:
        for received in pair.to_server(message):
            assert isinstance(received, Executed)
            response = received.responses[0]
            assert response is not None
            pair.server.resolve(response.outputs)

    with pytest.raises(BrokenLinkError):
        receive()


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_garbage_breaks_the_link_and_nothing_else(pieces: list[bytes]) -> None:
    link: Link[ToServer] = Link(msgspec.msgpack.Decoder(ToServer), Arena())
    with contextlib.suppress(BrokenLinkError):
        for piece in pieces:
            list(link.feed(memoryview(piece)))
    link.close()


@pytest.mark.parametrize(
    "message",
    [
        b"\x91" * 5000 + b"\x90",
        msgspec.msgpack.encode([34, 1, 0, 0, [[[], ["NO_SUCH_CODE", "bad"]]]]),
        msgspec.msgpack.encode([35, 1, [[["OUT", "INT32", [1], 5]]], True]),
    ],
)
def test_messages_that_are_well_formed_and_wrong_break_the_link(message: bytes) -> None:
    link: Link[ToServer] = Link(msgspec.msgpack.Decoder(ToServer), Arena())
    with pytest.raises(BrokenLinkError):
        list(link.feed(memoryview(len(message).to_bytes(4, "little") + message)))
    link.close()


def test_a_lost_descriptor_costs_one_message_and_the_slot_is_announced_again() -> None:
    pair = Pair()
    pair.server = Link(msgspec.msgpack.Decoder(Pong | Released | Slots | Unmapped), Arena())
    pair.server.tolerate_lost_descriptors()
    pair.worker.tolerate_lost_descriptors()

    def carry(source: Link[Any], target: Link[Any], message: Message, *, loses: bool) -> list[Any]:
        buffer = bytearray()
        fds = [os.dup(fd) for fd in source.pack(message, buffer)]
        if loses:
            for fd in fds:
                os.close(fd)
        return list(
            target.feed(
                memoryview(bytes(buffer)),
                () if loses else fds,
                has_lost_fds=loses and bool(fds),
            )
        )

    data = os.urandom(LARGE)
    for loses in (True, False):
        tensors = [Tensor("X", "UINT8", [LARGE], data)]
        pair.server.place(tensors)
        work = WorkRequest(1, "", tensors)
        (message,) = carry(pair.server, pair.worker, Execute(1, [work]), loses=loses)
        inputs = message.requests[0].inputs
        if loses:
            with pytest.raises(NaiadError, match="no shared memory is left for large tensors"):
                pair.worker.resolve(inputs)
            # The peer hears of it with the next message: the lease ends, and the slot is unknown.
            assert carry(pair.worker, pair.server, Pong(1), loses=False) == [Pong(1)]
        else:
            pair.worker.resolve(inputs)
            assert bytes(inputs[0].data) == data


def test_a_message_that_is_too_long_is_not_sent_and_its_slots_are_announced_later() -> None:
    pair = Pair()
    pair.worker.max_out_bytes = 5_000
    tensors = [Tensor("OUT", "UINT8", [LARGE], bytes(LARGE))]
    pair.worker.place(tensors)
    response = WorkResponse(tensors, parameters={"text": "x" * 10_000})
    with pytest.raises(NaiadError, match="longer than 5000 bytes"):
        pair.worker.pack(Executed(1, 0, 0, [response]), bytearray())
    [executed] = pair.to_server(Executed(1, 0, 0, [WorkResponse(tensors)]))
    assert isinstance(executed, Executed)
    assert executed.responses[0] is not None
    pair.server.resolve(executed.responses[0].outputs)
    assert bytes(executed.responses[0].outputs[0].data) == bytes(LARGE)
