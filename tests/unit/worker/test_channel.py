"""The worker's end of its channel, when an event loop reads it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from naiad.core.tensor import Tensor
from naiad.ipc.messages import Ping, Released
from naiad.shm.arena import SLOT_IDLE_NS
from naiad.worker.channel import WorkerChannel

WAIT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[WorkerChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield WorkerChannel(ours), theirs


def send_ping(sock: socket.socket, number: int) -> None:
    data = msgspec.msgpack.encode(Ping(number))
    sock.sendall(len(data).to_bytes(4, "little") + data)


def test_messages_that_come_while_the_channel_is_held_are_read_afterwards(
    pair: tuple[WorkerChannel, socket.socket],
) -> None:
    channel, server = pair
    with channel.reserve_for_loop() as inbox:
        channel.hold(True)
        send_ping(server, 7)
        assert inbox.poll(0) == []
        channel.hold(False)
        assert [fd for fd, _ in inbox.poll(WAIT_S)] == [channel.sock.fileno()]
        channel.poll()
        assert list(channel.backlog) == [Ping(7)]


def test_only_the_loops_own_thread_reads(pair: tuple[WorkerChannel, socket.socket]) -> None:
    channel, server = pair
    with channel.reserve_for_loop():
        send_ping(server, 7)
        other = threading.Thread(target=channel.poll)
        other.start()
        other.join()
        assert not channel.backlog
        channel.poll()
        assert list(channel.backlog) == [Ping(7)]


def test_without_a_loop_there_is_nothing_to_hold(pair: tuple[WorkerChannel, socket.socket]) -> None:
    channel, server = pair
    channel.hold(True)
    send_ping(server, 7)
    assert channel.next_work() == Ping(7)


def test_idle_output_slots_are_given_back(pair: tuple[WorkerChannel, socket.socket]) -> None:
    """The server has released the slots, and nothing needs them any more."""
    channel, _ = pair
    now_ns = [0]
    arena = channel.link.arena
    arena._now_ns = lambda: now_ns[0]
    tensors = [Tensor("OUT", "UINT8", [100_000], bytes(100_000)) for _ in range(3)]
    channel.link.place(tensors)
    channel.link._on_released(Released([ref.data.slot for ref in tensors]))  # type: ignore[union-attr]
    channel.trim()
    assert arena.committed_bytes > 0
    now_ns[0] = SLOT_IDLE_NS + 1
    channel.trim()
    assert arena.committed_bytes == 0
    assert len(channel.link._dropped) == 3
