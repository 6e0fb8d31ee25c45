"""The server's end of a channel against a peer that begins messages and does not go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from naiad.instances import channel as channel_module
from naiad.instances.channel import Channel
from naiad.ipc.framing import MAX_WORKER_MESSAGE_BYTES, Link
from naiad.ipc.messages import Control, LogLine, Message, Pong, ToServer, ToWorker
from naiad.ipc.work import ControlOperation
from naiad.shm.arena import Arena

LENGTH = struct.Struct("<I")


class Peer:
    """The worker's end as a plain socket, and what the server's end has reported."""

    def __init__(self, *, is_trusted: bool = False) -> None:
        ours, self.sock = socket.socketpair()
        self.messages: list[ToServer] = []
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.channel: Channel[ToServer] = Channel(
            asyncio.get_running_loop(),
            ours,
            msgspec.msgpack.Decoder(ToServer),
            Arena(),
            self.messages.append,
            self.reason.set_result,
            is_trusted=is_trusted,
        )
        self.channel.link.max_bytes = MAX_WORKER_MESSAGE_BYTES

    async def until_looked(self, times: int) -> None:
        """Until the server's end has looked so often at the message that does not go on."""
        for _ in range(times):
            look = self.channel._look
            while self.channel._look is look and not self.channel.is_closed:
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "LOOK_S", 0.002)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.sock.close()
    peer.channel.close("the test is over")


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    yield process
    process.kill()
    process.wait()


def pack(message: Message) -> bytes:
    buffer = bytearray()
    Link(msgspec.msgpack.Decoder(ToWorker), Arena()).pack(message, buffer)
    return bytes(buffer)


@pytest.mark.parametrize("begun", [b"\1", LENGTH.pack(1_000_000), LENGTH.pack(1 << 20) + b"x" * 9])
async def test_a_message_that_does_not_go_on_ends_the_channel(peer: Peer, begun: bytes) -> None:
    peer.sock.sendall(pack(Pong(1)) + begun)
    assert "does not go on" in await asyncio.wait_for(peer.reason, 60)
    assert peer.messages == [Pong(1)]


async def test_signs_of_life_behind_a_message_do_not_count_as_its_progress(peer: Peer) -> None:
    peer.sock.sendall(LENGTH.pack(MAX_WORKER_MESSAGE_BYTES) + b"x" * 1000)
    while not peer.reason.done():
        peer.sock.sendall(pack(Pong(1)))
        await peer.until_looked(1)
    assert "does not go on" in peer.reason.result()


async def test_a_message_that_goes_on_has_all_the_time_it_needs(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MIN_LOOK_BYTES", 1000)
    data = pack(LogLine("INFO", "x" * 50_000, "a.py", 1))
    for start in range(0, len(data), 1000):
        peer.sock.sendall(data[start : start + 1000])
        await peer.until_looked(1 if start + 1000 < len(data) else 0)
    while not peer.messages:
        await asyncio.sleep(0)
    assert not peer.reason.done()


async def test_each_message_has_a_clock_of_its_own(peer: Peer) -> None:
    """Each piece ends a message and begins the next, so that one is always under way."""
    data = pack(Pong(1))
    peer.sock.sendall(data[:3])
    for _ in range(2 * channel_module.MAX_SILENT_LOOKS):
        peer.sock.sendall(data[3:] + data[:3])
        await peer.until_looked(1)
    assert not peer.reason.done()
    assert len(peer.messages) >= 2 * channel_module.MAX_SILENT_LOOKS - 1


async def test_the_clock_of_a_stopped_process_does_not_run(
    peer: Peer, stopped: subprocess.Popen[bytes]
) -> None:
    peer.channel.pid = stopped.pid
    peer.sock.sendall(pack(Pong(1))[:5])
    await peer.until_looked(3 * channel_module.MAX_SILENT_LOOKS)
    assert not peer.reason.done()
    os.kill(stopped.pid, signal.SIGCONT)
    assert "does not go on" in await asyncio.wait_for(peer.reason, 60)


async def test_a_late_look_says_nothing(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself has not run: what the peer has sent waits unread."""
    monkeypatch.setattr(channel_module, "LATE_S", -1.0)
    peer.sock.sendall(pack(Pong(1))[:5])
    await peer.until_looked(3 * channel_module.MAX_SILENT_LOOKS)
    assert not peer.reason.done()


async def test_the_server_has_no_deadline_in_its_frontends() -> None:
    peer = Peer(is_trusted=True)
    peer.sock.sendall(LENGTH.pack(100) + b"x")
    while not peer.channel.link.incoming:
        await asyncio.sleep(0)
    assert peer.channel._look is None
    peer.sock.close()
    peer.channel.close("the test is over")


async def test_more_than_a_worker_sends_ends_the_channel(peer: Peer) -> None:
    peer.sock.sendall(LENGTH.pack((1 << 31) - 1) + b"x" * 1000)
    assert "message of 2147483647 bytes" in await asyncio.wait_for(peer.reason, 60)


def test_only_the_files_of_a_model_may_be_longer() -> None:
    worker: Link[ToWorker] = Link(msgspec.msgpack.Decoder(ToWorker), Arena())
    server: Link[ToServer] = Link(msgspec.msgpack.Decoder(ToServer), Arena())
    worker.max_out_bytes = server.max_bytes = 1000
    load = Control(1, ControlOperation("load_model", "m", files={"file:1/model.py": b"x" * 2000}))
    buffer = bytearray()
    worker.pack(load, buffer)
    half = list(server.feed(memoryview(bytes(buffer[:1500]))))
    assert [*half, *server.feed(memoryview(bytes(buffer[1500:])))] == [load]


async def test_random_bytes_never_stay_unanswered(peer: Peer) -> None:
    """A library writes stray bytes to the channel: the channel ends, or waits for nothing."""
    random_ = random.Random(7)
    for _ in range(50):
        garbled = Peer()
        garbled.sock.sendall(random_.randbytes(random_.randrange(1, 400)))
        await asyncio.wait_for(garbled.reason, 60)
        garbled.sock.close()
