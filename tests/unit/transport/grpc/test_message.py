from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.memory_budget import SMALL_BYTES, MemoryBudget
from naiad.transport.grpc.message import MessageReader
from naiad.transport.grpc.status import GrpcError, Status

MAX = 2**31 - 1


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def reader(
    budget: MemoryBudget | None = None, max_bytes: int = MAX, **options: Any
) -> MessageReader:
    return MessageReader(max_bytes, (budget or MemoryBudget()).open_account(), **options)


contents = st.one_of(st.binary(max_size=50), st.integers(0, 200_000).map(bytes))


@given(st.lists(st.tuples(st.booleans(), contents), max_size=6), st.integers(300, 90_000))
def test_any_split_gives_the_same_messages(messages: list[tuple[bool, bytes]], size: int) -> None:
    data = b"".join(framed(message, flag) for flag, message in messages)
    budget = MemoryBudget()
    subject = reader(budget)
    found = [
        message
        for at in range(0, len(data), size)
        for message in subject.feed(memoryview(data)[at : at + size])
    ]
    assert [(flag, bytes(message)) for flag, message in found] == messages
    assert subject.is_empty
    subject._account.settle()
    large = sum(len(message) for _, message in found if len(message) > SMALL_BYTES)
    assert budget.used_bytes == large
    found.clear()
    assert budget.used_bytes == 0


@given(st.integers(70_000, 400_000), st.lists(st.integers(500, 60_000), min_size=1), st.booleans())
def test_bytes_may_go_straight_into_the_sink(
    size: int, parts: list[int], starts_in_prefix: bool
) -> None:
    message = bytes(i % 251 for i in range(size))
    data = framed(message)
    subject = reader()
    at = 3 if starts_in_prefix else 6000
    assert subject.feed(data[:at]) == []
    found = []
    index = 0
    while at < len(data):
        part = data[at : at + parts[index % len(parts)]]
        index += 1
        sink = subject.sink()
        if sink is None:
            found += subject.feed(part)
        else:
            part = part[: len(sink)]
            sink[: len(part)] = part
            found += subject.filled(len(part))
        at += len(part)
    assert [bytes(m) for _, m in found] == [message]
    assert subject.sink() is None


def test_a_length_alone_allocates_nothing() -> None:
    allocated: list[int] = []

    def allocate(first: bytes, num_bytes: int) -> None:
        allocated.append(num_bytes)

    subject = reader(allocate=allocate)
    assert subject.feed(struct.pack(">BI", 0, MAX)) == []
    assert subject.feed(b"x" * 100_000) == []
    assert allocated == []
    assert subject.sink() is None
    assert subject.received_bytes == 100_000


def test_the_buffer_is_taken_when_a_256th_has_arrived() -> None:
    taken: list[tuple[bytes, int]] = []
    memory = np.empty(2_560_000, np.uint8).data

    def allocate(first: bytes, num_bytes: int) -> memoryview:
        taken.append((first, num_bytes))
        return memory

    subject = reader(allocate=allocate)
    subject.feed(struct.pack(">BI", 0, 2_560_000) + b"a" * 9_000)
    assert not taken
    subject.feed(b"b" * 1000)
    assert [(len(first), first[:1], num_bytes) for first, num_bytes in taken] == [
        (4096, b"a", 2_560_000)
    ]
    ((_, message),) = subject.feed(b"c" * 2_550_000)
    assert isinstance(message, memoryview)
    assert message.obj is memory.obj
    assert bytes(message) == b"a" * 9_000 + b"b" * 1000 + b"c" * 2_550_000


def test_compressed_messages_are_not_put_into_the_models_memory() -> None:
    subject = reader(allocate=lambda first, num_bytes: pytest.fail("must not be asked"))
    subject.feed(framed(b"x" * 100_000, 1)[:50_000])
    assert subject.sink() is not None


def test_a_large_message_in_tiny_pieces_costs_what_it_weighs() -> None:
    """A list of one-byte chunks would take forty times the memory."""
    budget = MemoryBudget()
    subject = reader(budget)
    data = framed(b"y" * 60_000)
    for at in range(len(data) - 1):
        assert subject.feed(data[at : at + 1]) == []
    subject._account.settle()
    assert budget.used_bytes == 59_999
    assert len(subject._start) == 59_999
    assert subject.feed(data[-1:]) == [(False, b"y" * 60_000)]


def test_too_large() -> None:
    with pytest.raises(
        GrpcError, match=r"received message larger than max \(11 vs. 10\)"
    ) as caught:
        reader(max_bytes=10).feed(struct.pack(">BI", 0, 11))
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_bad_flag() -> None:
    with pytest.raises(GrpcError, match="compressed flag is 7"):
        reader().feed(b"\x07\0\0\0\0")


class TestBudget:
    def test_is_shared_and_refuses(self) -> None:
        budget = MemoryBudget(2000)
        first, second = reader(budget), reader(budget)
        first.feed(framed(b"x" * 900)[:-1])
        with pytest.raises(GrpcError) as caught:
            second.feed(framed(b"x" * 900)[:-1])
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert (b"retry-after", b"1") in caught.value.fields
        assert budget.num_refused == 1
        second.release()
        first.release()
        del first, second
        assert budget.used_bytes == 0

    def test_whole_messages_cost_nothing(self) -> None:
        budget = MemoryBudget(10)
        assert len(reader(budget).feed(framed(b"x" * 900))) == 1
