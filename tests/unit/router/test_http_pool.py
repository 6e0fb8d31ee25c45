"""Connections to a replica, without sockets: what goes to the owner, and when one is used again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.router.address import Address
from naiad.router.http_pool import HttpPool, UpstreamConnection
from naiad.router.http_response import ResponseHead


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_open_for_reading = True
        self.is_aborted = False
        self.num_unsent = 0

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_open_for_reading = False

    def resume_reading(self) -> None:
        self.is_open_for_reading = True

    def abort(self) -> None:
        self.is_aborted = True


class Owner:
    def __init__(self) -> None:
        self.is_head_request = False
        self.connection: UpstreamConnection | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.should_pause = False

    def on_whole(self, head: ResponseHead, data: bytes, body_start: int) -> None:
        self.calls.append(("whole", head.status, data[body_start:]))

    def on_head(self, head: ResponseHead) -> None:
        self.calls.append(("head", head.status))

    def on_data(self, data: bytes) -> None:
        self.calls.append(("data", data))
        if self.should_pause and self.connection is not None:
            self.connection.pause()

    def on_end(self) -> None:
        self.calls.append(("end",))

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        self.calls.append(("lost", is_unsent, is_reused))

    def on_malformed(self, reason: str) -> None:
        self.calls.append(("malformed", reason))


@pytest.fixture
def pool() -> HttpPool:
    return HttpPool(Address("10.0.0.1", 80))


def sent(
    pool: HttpPool, *, is_head_request: bool = False
) -> tuple[UpstreamConnection, Wire, Owner]:
    connection, wire, owner = UpstreamConnection(pool), Wire(), Owner()
    owner.is_head_request = is_head_request
    connection.connection_made(wire)
    connection.send((b"request",), owner)
    return connection, wire, owner


def test_a_response_in_one_read_is_passed_on_as_a_whole(pool: HttpPool) -> None:
    connection, wire, owner = sent(pool)
    assert wire.written == [b"request"]
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert owner.calls == [("whole", 200, b"ok")]
    assert pool.idle == [connection]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_response_in_pieces_is_the_same(pool: HttpPool, size: int) -> None:
    for text in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
    ):
        connection, _, owner = sent(pool)
        for start in range(0, len(text), size):
            connection.data_received(text[start : start + size])
        body = b"".join(call[-1] for call in owner.calls if call[0] in ("whole", "data"))
        assert body == b"0123456789"
        assert owner.calls[-1][0] in ("whole", "end")
        assert connection in pool.idle


def test_a_connection_that_was_paused_at_the_end_reads_again(pool: HttpPool) -> None:
    connection, wire, owner = sent(pool)
    owner.should_pause = True
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    assert not wire.is_open_for_reading
    connection.data_received(b"cd")
    assert owner.calls[-1] == ("end",)
    assert wire.is_open_for_reading
    assert pool.idle == [connection]


def test_a_body_may_end_with_the_connection(pool: HttpPool) -> None:
    connection, _, owner = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    connection.connection_lost(None)
    assert owner.calls == [("head", 200), ("data", b"abc"), ("end",)]
    assert pool.idle == []


@pytest.mark.parametrize(
    "text", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_a_connection_that_ends_too_early_is_a_loss(pool: HttpPool, text: bytes) -> None:
    connection, _, owner = sent(pool)
    if text:
        connection.data_received(text)
    connection.connection_lost(ConnectionResetError())
    assert owner.calls[-1] == ("lost", False, False)


def test_tells_that_a_lost_connection_had_been_used(pool: HttpPool) -> None:
    connection, _, _ = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    second = Owner()
    pool.send((b"second",), second)
    connection.connection_lost(None)
    assert second.calls == [("lost", False, True)]


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\n" * 9 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
    ],
)
def test_what_is_not_a_response_ends_the_connection(pool: HttpPool, text: bytes) -> None:
    connection, wire, owner = sent(pool)
    connection.data_received(text)
    assert owner.calls[-1][0] == "malformed"
    assert wire.is_aborted
    assert pool.idle == []


def test_a_response_that_closes_is_not_followed_by_another_request(pool: HttpPool) -> None:
    connection, wire, owner = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert owner.calls == [("whole", 200, b"")]
    assert wire.is_aborted
    assert pool.idle == []


def test_a_response_to_head_has_no_body(pool: HttpPool) -> None:
    connection, wire, owner = sent(pool, is_head_request=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
    assert owner.calls == [("whole", 200, b"")]
    assert pool.idle == [connection]
    assert not wire.is_aborted


def test_bytes_without_a_request_end_the_connection(pool: HttpPool) -> None:
    connection, wire, _ = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    connection.data_received(b"HTTP/1.1 200 OK\r\n")
    assert wire.is_aborted


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nHTTP/1.1 ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_response_with_more_behind_it_is_the_last(pool: HttpPool, text: bytes) -> None:
    connection, wire, owner = sent(pool)
    connection.data_received(text)
    assert owner.calls[-1] == ("end",)
    assert wire.is_aborted
    assert pool.idle == []


def test_bytes_behind_a_response_to_head_end_the_connection(pool: HttpPool) -> None:
    connection, wire, owner = sent(pool, is_head_request=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
    assert owner.calls == [("whole", 200, b"")]
    assert wire.is_aborted


def test_a_response_that_comes_before_the_whole_request_has_left_is_the_last(
    pool: HttpPool,
) -> None:
    connection, wire, owner = sent(pool)
    wire.num_unsent = 5
    connection.data_received(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno")
    assert owner.calls == [("whole", 400, b"no")]
    assert wire.is_aborted
    assert pool.idle == []


def test_a_body_that_ends_with_a_reset_is_not_complete(pool: HttpPool) -> None:
    connection, _, owner = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    connection.connection_lost(ConnectionResetError())
    assert owner.calls[-1] == ("lost", False, False)


def test_connections_that_were_idle_for_long_are_closed(pool: HttpPool) -> None:
    connection, wire, _ = sent(pool)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    pool.sweep(connection.idle_since_s + 1.0)
    assert pool.idle == [connection]
    pool.sweep(connection.idle_since_s + 5.0)
    assert pool.idle == []
    assert wire.is_aborted
