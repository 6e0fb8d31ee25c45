"""One connection: framing, order of answers, refusals, and how it ends. No sockets."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.limits import Http1Limits
from tests.unit.transport.http1.http1_rig import Rig, answer, echo, request


async def test_a_request_is_handed_over_and_answered() -> None:
    rig = Rig()
    rig.feed(request("/a/b?c", b"body"))
    (exchange,) = rig.exchanges
    assert (exchange.head.path, exchange.body) == (b"/a/b", b"body")
    exchange.respond(200, b"X: y\r\n", b"hello")
    assert await rig.written() == answer(b"hello", headers="X: y\r\n")
    assert not rig.transport.is_closed
    assert rig.endpoint.num_requests == 1


async def test_bytes_one_by_one() -> None:
    rig = Rig(handle=echo)
    for octet in request(body=b"abc"):
        rig.feed(bytes([octet]))
    assert await rig.written() == answer(b"abc")


async def test_keep_alive_serves_one_request_after_the_other() -> None:
    rig = Rig(handle=echo)
    for body in (b"1", b"", b"three"):
        rig.feed(request(body=body))
        assert await rig.written() == answer(body)


async def test_equal_heads_share_one_parse() -> None:
    rig = Rig(handle=echo)
    rig.feed(request(body=b"a"))
    rig.feed(request(body=b"b"))
    assert await rig.written() == answer(b"a") + answer(b"b")
    assert len(rig.endpoint.heads) == 1


async def test_heads_of_large_bodies_are_kept_when_they_come_again() -> None:
    rig = Rig(handle=echo)
    heads = [b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (70_000 + n) for n in range(30)]
    for head in heads:
        rig.endpoint.read_head(head)
    assert len(rig.endpoint.heads) == 0
    rig.endpoint.read_head(heads[7])
    assert list(rig.endpoint.heads) == [heads[7]]


async def test_empty_lines_before_a_request_are_ignored() -> None:
    rig = Rig(handle=echo)
    rig.feed(b"\r\n\r\n" + request(body=b"a"))
    assert await rig.written() == answer(b"a")


# Pipelining.


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    rig = Rig()
    rig.feed(request(body=b"1") + request(body=b"2") + request(body=b"3"))
    first, second, third = rig.exchanges
    third.respond(200, b"", b"three")
    second.respond(200, b"", b"two")
    assert await rig.written() == b""
    first.respond(200, b"", b"one")
    assert await rig.written() == answer(b"one") + answer(b"two") + answer(b"three")
    assert rig.transport.num_writes == 1


async def test_answers_of_one_read_leave_in_one_write() -> None:
    rig = Rig(handle=echo)
    rig.feed(request(body=b"1") * 5)
    assert await rig.written() == answer(b"1") * 5
    assert rig.transport.num_writes == 1


async def test_pipelining_is_bounded_and_goes_on() -> None:
    rig = Rig(Http1Limits(max_pipelined=2, max_held_bytes=200))
    rig.feed(b"".join(request(body=b"%d" % number) for number in range(9)))
    assert [exchange.body for exchange in rig.exchanges] == [b"0", b"1"]
    assert rig.transport.is_paused
    for number in range(9):
        rig.exchanges[number].respond(200, b"", b"%d" % number)
    assert await rig.written() == b"".join(answer(b"%d" % number) for number in range(9))
    assert not rig.transport.is_paused


async def test_while_it_waits_for_a_turn_the_socket_is_still_read() -> None:
    rig = Rig(Http1Limits(max_pipelined=1))
    rig.feed(request(body=b"1") + request(body=b"2"))
    assert not rig.transport.is_paused, "else the client's FIN would not be seen"
    rig.exchanges[0].respond(200, b"")
    assert len(rig.exchanges) == 2


async def test_nothing_new_is_begun_for_a_client_that_does_not_read() -> None:
    rig = Rig(handle=echo)
    rig.connection.pause_writing()
    rig.feed(request(body=b"1"))
    assert await rig.written() == b""
    rig.connection.resume_writing()
    assert await rig.written() == answer(b"1")


async def test_a_stream_that_waits_for_its_turn() -> None:
    rig = Rig()
    rig.feed(request() + request())
    first, second = rig.exchanges
    second.start_stream(200, b"")
    second.send_chunk(b"ab")
    first.respond(200, b"", b"one")
    second.send_chunk(b"c")
    second.end_stream()
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert await rig.written() == answer(b"one") + stream
    rig.feed(request())
    assert len(rig.exchanges) == 3


# Bodies.


async def test_a_large_body_is_received_where_the_route_wants_it() -> None:
    rig = Rig()
    memory = np.empty(100_000, np.uint8).data
    rig.route.body_buffer = lambda size: memory[:size]
    body = bytes(range(256)) * 300
    rig.feed(request(body=body) + request(body=b"next"))
    received = rig.exchanges[0].body
    assert isinstance(received, memoryview)
    assert received.obj is memory.obj
    assert received == body
    assert rig.exchanges[1].body == b"next"


async def test_a_large_body_without_memory_of_the_route() -> None:
    rig = Rig()
    rig.route.body_buffer = lambda size: None
    rig.feed(request(body=b"x" * 200_000))
    assert rig.exchanges[0].body == b"x" * 200_000


async def test_a_body_that_comes_in_pieces_is_bytes_when_it_is_small() -> None:
    rig = Rig()
    data = request(body=b"y" * 1000)
    rig.feed(data[:-500])
    assert rig.exchanges == []
    rig.feed(data[-500:])
    assert rig.exchanges[0].body == b"y" * 1000
    assert isinstance(rig.exchanges[0].body, bytes)


async def test_chunked_body_and_what_follows_it() -> None:
    rig = Rig(handle=echo)
    chunked = (
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    rig.feed(chunked + request(body=b"next"))
    assert await rig.written() == answer(b"abcde") + answer(b"next")


async def test_expect_100_continue() -> None:
    rig = Rig(handle=echo)
    data = request(body=b"abc", headers="Expect: 100-continue\r\n")
    rig.feed(data[:-3])
    assert await rig.written() == b"HTTP/1.1 100 Continue\r\n\r\n"
    rig.feed(b"abc")
    assert await rig.written() == answer(b"abc")
    rig.feed(data)
    assert await rig.written() == answer(b"abc"), "the body was there already"


async def test_continue_waits_for_earlier_answers() -> None:
    rig = Rig()
    rig.feed(request(body=b"1"))
    rig.feed(request(body=b"abc", headers="Expect: 100-continue\r\n")[:-3])
    assert await rig.written() == b""
    rig.exchanges[0].respond(200, b"", b"one")
    assert await rig.written() == answer(b"one") + b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_no_continue_for_a_body_that_is_refused() -> None:
    rig = Rig(Http1Limits(max_body_bytes=10))
    rig.feed(request(body=b"x" * 11, headers="Expect: 100-continue\r\n")[:-11])
    assert (await rig.written()).startswith(b"HTTP/1.1 400 ")


# The answer's form.


async def test_head_gets_the_length_and_no_body() -> None:
    rig = Rig()
    rig.feed(b"HEAD / HTTP/1.1\r\n\r\n")
    rig.exchanges[0].respond(200, b"", b"hello")
    assert await rig.written() == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


async def test_http10() -> None:
    rig = Rig(handle=echo)
    rig.feed(b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na")
    assert (
        await rig.written()
        == b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na"
    )
    rig.feed(b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nb")
    assert (
        await rig.written() == b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nb"
    )
    assert rig.transport.is_closed


async def test_a_stream_over_http10_is_ended_by_closing() -> None:
    rig = Rig()
    rig.feed(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    rig.exchanges[0].start_stream(200, b"")
    rig.exchanges[0].send_chunk(b"abc")
    rig.exchanges[0].end_stream()
    assert await rig.written() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
    assert rig.transport.is_closed


async def test_connection_close_ends_it_after_the_answer_and_what_follows_is_ignored() -> None:
    rig = Rig()
    rig.feed(request(body=b"1", headers="Connection: close\r\n") + request(body=b"2"))
    assert len(rig.exchanges) == 1
    rig.exchanges[0].respond(200, b"", b"one")
    assert await rig.written() == answer(b"one", headers="Connection: close\r\n")
    assert rig.transport.is_closed


async def test_large_parts_are_written_as_they_are() -> None:
    rig = Rig()
    rig.feed(request())
    parts: list[bytes | bytearray | memoryview] = [
        b"a" * 50_000,
        bytearray(b"b" * 50_000),
        b"",
        memoryview(b"c" * 10),
    ]
    rig.exchanges[0].respond_parts(200, b"", parts, 100_010)
    assert await rig.written() == answer(b"a" * 50_000 + b"b" * 50_000 + b"c" * 10)


async def test_a_second_answer_is_ignored() -> None:
    rig = Rig()
    rig.feed(request())
    rig.exchanges[0].respond(200, b"", b"one")
    rig.exchanges[0].respond(500, b"", b"two")
    rig.exchanges[0].send_chunk(b"three")
    assert await rig.written() == answer(b"one")


async def test_a_handler_that_raises_is_an_internal_error() -> None:
    def broken(exchange: Exchange) -> None:
        raise ZeroDivisionError

    rig = Rig(handle=broken)
    rig.feed(request() + request())
    written = await rig.written()
    assert written.count(b"HTTP/1.1 500 ") == 2
    assert b"ZeroDivision" not in written


# Refusals.

REFUSED = {
    "garbage": (b"hello\r\n\r\n", 400),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "long target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
    "long target without an end": (b"GET /" + b"a" * 40_000, 414),
    "many fields": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
    "long head": (b"GET / HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    "long head without an end": (b"GET / HTTP/1.1\r\nX: " + b"y" * 40_000, 431),
    "bad chunk": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "large body": (b"POST / HTTP/1.1\r\nContent-Length: 67108865\r\n\r\n", 400),
    "large chunk": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4000001\r\n", 400),
    "unknown coding": (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "unknown expectation": (b"POST / HTTP/1.1\r\nExpect: a cake\r\nContent-Length: 1\r\n\r\n", 417),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
async def test_refused(data: bytes, status: int) -> None:
    rig = Rig()
    rig.feed(data)
    written = await rig.written()
    assert written.startswith(b"HTTP/1.1 %d " % status)
    assert b'\r\nConnection: close\r\n\r\n{"error":"' in written
    assert written.count(b"HTTP/1.1") == 1
    assert rig.exchanges == []
    assert rig.transport.has_eof
    assert rig.endpoint.num_refused == 1
    rig.feed(request())
    assert rig.exchanges == [], "nothing after a broken request counts"


@pytest.mark.parametrize("length", [0, 5, 30, 10**9])
async def test_a_length_next_to_chunked_does_not_count(length: int) -> None:
    """No request hides in the body, wherever a proxy in front believes that it ends."""
    rig = Rig()
    rig.feed(
        b"POST / HTTP/1.1\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n" % length
    )
    assert [bytes(exchange.body) for exchange in rig.exchanges] == [b"abc"]
    rig.exchanges[0].respond(200, b"", b"one")
    written = await rig.written()
    assert b"Connection: close\r\n" in written
    assert written.count(b"HTTP/1.1") == 1
    rig.feed(request())
    assert len(rig.exchanges) == 1


async def test_every_route_has_the_same_text_for_a_large_body() -> None:
    for data, size in (
        (request(body=b"x" * 101), 101),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n60\r\n%b\r\n6\r\n" % (b"x" * 96),
            102,
        ),
    ):
        rig = Rig(Http1Limits(max_body_bytes=100))
        rig.feed(data)
        assert (
            b'{"error":"request JSON size of %d bytes exceeds the maximum allowed input size of '
            b'100 bytes. Use --http-max-input-size to increase the limit."}' % size
        ) in await rig.written()


async def test_a_refusal_comes_after_the_answers_before_it() -> None:
    rig = Rig()
    rig.feed(request(body=b"1") + b"garbage\r\n\r\n")
    assert await rig.written() == b""
    rig.exchanges[0].respond(200, b"", b"one")
    written = await rig.written()
    assert written.startswith(answer(b"one") + b"HTTP/1.1 400 ")
    assert rig.transport.has_eof


async def test_a_route_may_choose_the_text_for_a_large_body() -> None:
    rig = Rig(Http1Limits(max_body_bytes=100))
    rig.route.oversize_message = lambda size, limit: f"{size} is more than {limit}"
    rig.feed(request(body=b"x" * 101))
    assert b'{"error":"101 is more than 100"}' in await rig.written()


async def test_a_route_with_a_limit_of_its_own() -> None:
    rig = Rig()
    rig.route.max_body_bytes = 10
    rig.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n")
    assert (await rig.written()).startswith(b"HTTP/1.1 400 ")


async def test_memory_that_cannot_be_had_is_a_refusal() -> None:
    def none_left(size: int) -> memoryview:
        raise MemoryError

    rig = Rig()
    rig.route.body_buffer = none_left
    rig.feed(request(body=b"x" * 100_000))
    written = await rig.written()
    assert written.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in written


async def test_a_million_chunks_of_one_byte() -> None:
    rig = Rig()
    rig.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 70_000)
    written = await rig.written()
    assert written.startswith(b"HTTP/1.1 400 ")
    assert (
        b"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger "
        b"HTTP chunks." in written
    )


# Disconnects.


@pytest.mark.parametrize("how", ["eof", "lost"])
async def test_a_client_that_goes_away_is_noticed_at_once(how: str) -> None:
    rig = Rig()
    rig.feed(request() + request())
    gone: list[int] = []
    for number, exchange in enumerate(rig.exchanges):
        exchange.on_disconnect(partial(gone.append, number))
    if how == "eof":
        assert rig.connection.eof_received() is False
    else:
        rig.lose()
    assert gone == [0, 1]
    assert rig.exchanges[0].is_disconnected
    rig.exchanges[0].respond(200, b"", b"late")
    rig.exchanges[1].start_stream(200, b"")
    rig.exchanges[1].send_chunk(b"late")
    rig.exchanges[1].end_stream()
    assert await rig.written() == b""


async def test_who_asks_after_the_client_has_gone_is_told_at_once() -> None:
    rig = Rig()
    rig.feed(request())
    rig.lose()
    gone: list[str] = []
    rig.exchanges[0].on_disconnect(lambda: gone.append("gone"))
    assert gone == ["gone"]


async def test_an_answered_request_cannot_be_lost() -> None:
    rig = Rig()
    rig.feed(request())
    gone: list[str] = []
    rig.exchanges[0].on_disconnect(lambda: gone.append("gone"))
    rig.exchanges[0].respond(200, b"")
    rig.lose()
    assert gone == []


async def test_what_was_answered_before_the_end_is_still_written() -> None:
    rig = Rig()
    other, _ = rig.connect()
    rig.feed(request(), other)
    rig.feed(request())
    rig.exchanges[0].respond(200, b"")
    rig.exchanges[1].respond(200, b"", b"one")
    rig.connection.eof_received()
    assert rig.transport.take() == answer(b"one")


async def test_a_disconnect_in_the_middle_of_a_body_frees_it() -> None:
    rig = Rig()
    rig.feed(request(body=b"x" * 100_000)[:70_000])
    rig.lose()
    assert rig.endpoint.connections == set()
    assert rig.exchanges == []


async def test_a_stream_is_cut_when_its_reader_is_too_slow() -> None:
    rig = Rig(Http1Limits(max_stream_buffer_bytes=1000))
    rig.feed(request())
    (exchange,) = rig.exchanges
    gone: list[str] = []
    exchange.on_disconnect(lambda: gone.append("gone"))
    exchange.start_stream(200, b"")
    rig.connection.pause_writing()
    rig.transport.unsent_bytes = 900
    exchange.send_chunk(b"x")
    assert gone == []
    rig.transport.unsent_bytes = 1001
    exchange.send_chunk(b"x")
    assert gone == ["gone"]
    assert rig.transport.is_aborted
    assert rig.endpoint.num_slow_readers == 1


async def test_a_stream_that_may_not_be_written_yet_is_bounded_too() -> None:
    rig = Rig(Http1Limits(max_stream_buffer_bytes=1000))
    rig.feed(request() + request())
    rig.exchanges[1].start_stream(200, b"")
    for _ in range(20):
        rig.exchanges[1].send_chunk(b"x" * 100)
    assert rig.transport.is_aborted
    assert rig.exchanges[0].is_disconnected


async def test_flow_control_reaches_the_handler() -> None:
    rig = Rig()
    rig.feed(request())
    flow: list[bool] = []
    rig.exchanges[0].on_flow(flow.append)
    rig.exchanges[0].start_stream(200, b"")
    rig.connection.pause_writing()
    rig.connection.resume_writing()
    assert flow == [True, False]


async def test_flow_control_of_a_stream_that_waits_for_its_turn() -> None:
    rig = Rig()
    rig.feed(request() + request())
    flow: list[bool] = []
    rig.exchanges[1].on_flow(flow.append)
    rig.exchanges[1].start_stream(200, b"")
    rig.exchanges[1].send_chunk(b"x" * 70_000)
    assert flow == [True]
    rig.exchanges[0].respond(200, b"")
    assert flow == [True, False]
