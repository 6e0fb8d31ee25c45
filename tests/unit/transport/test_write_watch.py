"""Who reads and who does not, over real sockets of this machine, on a clock that the tests advance.
That a machine has vanished needs a network that can lose it: tests/network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from naiad.transport.tcp_watch import VANISHED_S, _read_unacked, discard
from naiad.transport.write_watch import CLEAN_LOOK_S, Verdict, WriteWatch
from tests.fakes.transport import FakeTransport

LIMIT_S = 60.0
PIECE = bytes(1 << 20)


class Connection:
    def __init__(self, transport: asyncio.Transport, client: socket.socket) -> None:
        self.transport = transport
        self.client = client
        self.watch = WriteWatch(transport)
        self.now_s = 1000.0

    async def look(self, after_s: float = 0.0, **held: int) -> Verdict:
        """The clock stands still while the client's system acknowledges what it has."""
        self.now_s += after_s
        await self.until(lambda: not self._is_on_its_way())
        return self.watch.look(self.now_s, LIMIT_S, **held)

    def _is_on_its_way(self) -> bool:
        info = self.watch._read()
        assert info is not None
        return bool(_read_unacked(info)[0])

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await asyncio.sleep(0)

    async def fill(self) -> None:
        """The client reads nothing: its window closes, and the transport has to keep bytes."""
        self.transport.write(PIECE * 8)
        last = -1
        while last != (last := self.transport.get_write_buffer_size()):
            for _ in range(100):
                await asyncio.sleep(0)
        assert last > 0

    def read(self) -> None:
        assert self.client.recv(1 << 20)


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            made.set_result(transport)

    listener = await loop.create_server(Server, "127.0.0.1", 0)
    client = socket.create_connection(listener.sockets[0].getsockname())
    connection = Connection(await made, client)
    yield connection
    connection.transport.abort()
    client.close()
    listener.close()


async def test_a_client_that_has_read_everything_may_wait(connection: Connection) -> None:
    connection.transport.write(b"x" * 1000)
    assert await connection.look() is Verdict.READS
    assert connection.watch.is_clean
    assert await connection.look(after_s=10 * LIMIT_S) is Verdict.READS
    assert not connection.watch.is_due(connection.now_s + CLEAN_LOOK_S - 1)
    assert connection.watch.is_due(connection.now_s + CLEAN_LOOK_S)


async def test_a_client_that_reads_nothing_is_slow_and_not_gone(connection: Connection) -> None:
    """Its system answers for it, however long that takes."""
    await connection.fill()
    assert await connection.look() is Verdict.READS
    assert await connection.look(after_s=LIMIT_S - 1) is Verdict.READS
    assert connection.now_s > 1000.0 + VANISHED_S
    first = connection.watch._bytes_acked
    connection.read()
    while connection.watch._bytes_acked == first:
        assert await connection.look() is Verdict.READS
    assert await connection.look(after_s=LIMIT_S - 1) is Verdict.READS
    assert await connection.look(after_s=2) is Verdict.SLOW


async def test_bytes_that_are_added_are_no_progress(connection: Connection) -> None:
    await connection.fill()
    await connection.look()
    for _ in range(int(LIMIT_S)):
        connection.transport.write(b"one more item")
        assert await connection.look(after_s=1) is Verdict.READS
    assert await connection.look(after_s=1) is Verdict.SLOW


async def test_what_the_system_keeps_counts_as_well(connection: Connection) -> None:
    """Small items of a stream fit into the buffers of the system for minutes."""
    while not connection.watch._outstanding_bytes():
        connection.transport.write(bytes(10_000))
        await connection.look()
    assert connection.transport.get_write_buffer_size() == 0
    assert connection.watch._outstanding_bytes()
    assert not connection.watch.is_clean
    assert await connection.look(after_s=LIMIT_S - 1) is Verdict.READS
    assert await connection.look(after_s=2) is Verdict.SLOW


async def test_a_window_of_http2_that_stays_closed(connection: Connection) -> None:
    assert await connection.look(held_bytes=100, activity=1) is Verdict.READS
    assert await connection.look(LIMIT_S - 1, held_bytes=500, activity=1) is Verdict.READS
    assert await connection.look(1, held_bytes=500, activity=2) is Verdict.READS
    assert await connection.look(LIMIT_S, held_bytes=500, activity=2) is Verdict.READS
    assert await connection.look(1, held_bytes=900, activity=2) is Verdict.SLOW


async def test_nothing_is_left_of_a_connection_that_is_given_up(connection: Connection) -> None:
    await connection.fill()
    port = connection.client.getsockname()[1]
    discard(connection.transport)
    mark = f":{port:04X} "

    def is_gone() -> bool:
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table]
        ours = [row for row in rows if row[2].endswith(mark.strip())]
        return not ours

    await connection.until(is_gone)


def test_without_a_socket_the_buffer_must_become_shorter() -> None:
    transport = FakeTransport()
    watch = WriteWatch(transport)
    transport.unsent_bytes = 100
    assert watch.look(1.0, LIMIT_S) is Verdict.READS
    for second in range(2, 62):
        transport.unsent_bytes += 5
        assert watch.look(float(second), LIMIT_S) is Verdict.READS
    assert watch.look(62.0, LIMIT_S) is Verdict.SLOW
    transport.unsent_bytes -= 1
    assert watch.look(63.0, LIMIT_S) is Verdict.READS
