"""The fast path of repeated requests gives what the full path gives: each test sends the same bytes
both paths and compares everything."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import invalid_arg
from naiad.fastpath.call import FastCall
from naiad.fastpath.grpc_stream import FastStream
from naiad.pb.grpc_service_pb2 import ModelInferRequest, ServerLiveResponse
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import Status
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import Http2Limits
from tests.fakes.model import FakeModel
from tests.unit.transport.http2.http2_rig import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    frames,
    setting,
    u32,
)
from tests.wire.fast_path_grpc_pair import (
    BLOCK,
    HEAD,
    INITIAL_WINDOW,
    Pair,
    add_sub,
    answers,
    count_learning,
    one,
    with_headers,
)
from tests.wire.grpc_rig import SERVICE, Rig, framed


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    await pair.close()


def answer(
    name: str = "OUTPUT0",
    datatype: str = "FP32",
    shape: Sequence[int] = (1,),
    data: Buffer = b"\0\0\0\0",
) -> InferResponse:
    return InferResponse("held", "1", "", [Tensor(name, datatype, list(shape), data)])


async def warm(pair: Pair, message: ModelInferRequest | None = None, count: int = 3) -> None:
    """The first request with its headers takes the full path; the next is learned and goes the fast
    one; later ones are answered so, too."""
    before = pair.num_fast
    for _ in range(count):
        pair.feed(pair.request(message or add_sub()))
        await pair.check()
    assert pair.num_fast >= before + count - 1


class TestEqual:
    @pytest.mark.parametrize("update", [0, 5])
    @pytest.mark.parametrize("connection_update", [0, 300])
    @pytest.mark.parametrize("request_id", ["", "7", "a:b:c", "id-ö", "%d%%"])
    async def test_one_by_one(
        self, pair: Pair, update: int, connection_update: int, request_id: str
    ) -> None:
        for value in range(6):
            pair.feed(
                pair.request(
                    add_sub(value, request_id), update=update, connection_update=connection_update
                )
            )
            written = await pair.check()
            response = answers(written)[pair.next_id - 2]
            assert response.id == request_id
            assert (
                np.frombuffer(response.raw_output_contents[0], np.float32).tolist()
                == [2.0 * value + 1] * 16
            )
        await pair.check(num_fast=5)

    async def test_many_in_one_read(self, pair: Pair) -> None:
        await warm(pair)
        requests = [
            pair.request(add_sub(value), connection_update=value % 3) for value in range(20)
        ]
        pair.feed(b"".join(requests))
        assert len(answers(await pair.check(num_fast=22))) == 20

    async def test_ids_that_change(self, pair: Pair) -> None:
        for value in range(10, 20):
            pair.feed(pair.request(add_sub(value, f"request {value}")))
            assert answers(await pair.check())[pair.next_id - 2].id == f"request {value}"
        await pair.check(num_fast=9)

    async def test_kinds_of_requests_that_take_turns(self, pair: Pair) -> None:
        """On one connection: of other models, with ids of other lengths; one by one, and in any
        order in one read."""
        kinds = [add_sub(), one("identity"), add_sub(request_id="9"), add_sub(request_id="10")]
        for number in range(16):
            pair.feed(pair.request(kinds[number % 4]))
            await pair.check()
        assert pair.num_fast >= 12
        before = pair.num_fast
        order = [0, 1, 1, 2, 3, 0, 0, 3, 2, 1, 2, 2, 0, 3]
        pair.feed(b"".join(pair.request(kinds[kind], connection_update=kind) for kind in order))
        assert len(answers(await pair.check(num_fast=before + len(order)))) == len(order)

    async def test_the_latest_kinds_are_kept(self, pair: Pair) -> None:
        for length in range(1, 12):
            # which earns the credit to learn the next one
            await warm(pair, add_sub(request_id="x" * length), count=20)
        before = pair.num_fast
        pair.feed(
            b"".join(pair.request(add_sub(request_id="x" * length)) for length in (8, 9, 10, 11))
        )
        await pair.check(num_fast=before + 4)

    async def test_kinds_that_come_no_more_make_room(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In whatever order the others come: none of these is learned a second time."""
        for length in (5, 6):
            await warm(pair, add_sub(request_id="x" * length), count=40)
        learned = count_learning(monkeypatch)
        often, *others = add_sub(), one("identity"), one("identity", bytes(8))
        await warm(pair, often, count=40)
        for number in range(80):
            for message in (often, others[number % 2]):
                pair.feed(pair.request(message))
                await pair.check()
        assert len(learned) == 3

    async def test_a_client_of_many_kinds_of_requests(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are not learned again and again, and never is it the wrong one for ever."""
        learned = count_learning(monkeypatch)
        messages = [
            add_sub(),
            one("identity"),
            one("classes", bytes(16)),
            one("identity", bytes(8)),
        ]
        messages += [add_sub(request_id="x" * length) for length in (1, 2, 3)]
        for number in range(64):
            pair.feed(pair.request(messages[number % len(messages)]))
            await pair.check()
        assert len(learned) < 10
        before = pair.num_fast
        for _ in range(40):
            pair.feed(pair.request(add_sub()))
            await pair.check()
        assert pair.num_fast > before + 20

    async def test_percent_signs_and_large_answers(self, pair: Pair) -> None:
        await warm(pair, one("identity", b"%b%%" * 900))

    @pytest.mark.parametrize("model", ["faulty", "double"])
    async def test_answers_that_are_faults(self, pair: Pair, model: str) -> None:
        for _ in range(4):
            pair.feed(pair.request(one(model)))
            await pair.check()
        await pair.check(num_fast=3)

    async def test_nothing_is_left_to_the_garbage_collector(self, pair: Pair) -> None:
        for rig in pair.rigs:
            rig.core.keeps_requests = False
        gc.collect()
        gc.disable()
        try:
            for model in ("identity", "faulty", "double", "identity"):
                await warm(pair, one(model))
            held = pair.request(one("held"))
            for _ in range(3):
                pair.feed(pair.request(one("held")))
            pair.feed(held)
            pair.both(lambda rig: rig.feed(frame(RST, 0, pair.next_id - 2, u32(8))))
            for rig in pair.rigs:
                for waiting in rig.core.held:
                    waiting.answer()
                rig.core.held.clear()
                del waiting
            await pair.check()
            assert [
                found for found in gc.get_objects() if type(found) in (FastCall, FastStream)
            ] == []
        finally:
            gc.enable()


RAW = add_sub().SerializeToString()
INDEXED = b"\x40\x01x\x01y"
"""A field that goes into the header table."""

ODD: dict[str, Callable[[Pair], bytes]] = {
    "deadline": lambda pair: pair.request(
        add_sub(), block=with_headers((b"grpc-timeout", b"100S"))
    ),
    "metadata": lambda pair: pair.request(add_sub(), block=with_headers((b"who", b"me"))),
    "a field for the table": lambda pair: pair.request(add_sub(), block=BLOCK + INDEXED),
    "longer": lambda pair: pair.request(one("identity", bytes(64))),
    "shorter": lambda pair: pair.request(one("identity")),
    "other model, same length": lambda pair: pair.request(RAW.replace(b"add_sub", b"add_suv")),
    "other shape, same length": lambda pair: pair.request(
        RAW.replace(b"\x1a\x02\x01\x10", b"\x1a\x02\x02\x08")
    ),
    "id is no text": lambda pair: pair.request(b"\x0a\x07add_sub\x1a\x01\xff" + RAW[9:]),
    "no message at all": lambda pair: pair.request(bytes(len(RAW))),
    "compressed flag": lambda pair: pair.request(add_sub()).replace(framed(RAW), framed(RAW, 1)),
    "prefix says more": lambda pair: pair.request(add_sub()).replace(
        framed(RAW)[:5], framed(RAW + b" ")[:5]
    ),
    "end comes later": lambda pair: (
        pair.request(add_sub(), flags=0) + frame(DATA, END_STREAM, pair.next_id - 2)
    ),
    "two frames of data": lambda pair: (
        frame(HEADERS, END_HEADERS, _new(pair), BLOCK)
        + frame(DATA, 0, pair.next_id - 2, framed(RAW)[:40])
        + frame(DATA, END_STREAM, pair.next_id - 2, framed(RAW)[40:])
    ),
    "padding": lambda pair: (
        frame(HEADERS, END_HEADERS, _new(pair), BLOCK)
        + frame(DATA, END_STREAM | PADDED, pair.next_id - 2, b"\x03" + framed(RAW) + bytes(3))
    ),
    "continuation": lambda pair: (
        frame(HEADERS, 0, _new(pair), BLOCK[:9])
        + frame(CONTINUATION, END_HEADERS, pair.next_id - 2, BLOCK[9:])
        + frame(DATA, END_STREAM, pair.next_id - 2, framed(RAW))
    ),
    "trailers": lambda pair: (
        pair.request(add_sub(), flags=0)
        + frame(HEADERS, END_HEADERS | END_STREAM, pair.next_id - 2, encode_headers([(b"x", b"y")]))
    ),
    "other update": lambda pair: pair.request(add_sub(), update=6),
    "no update": lambda pair: pair.request(add_sub(), update=0),
    "update of nothing": lambda pair: pair.request(add_sub()) + frame(WINDOW, 0, 0, u32(0)),
    "update that overflows": lambda pair: (
        pair.request(add_sub()) + frame(WINDOW, 0, 0, u32(0x7FFFFFFF))
    ),
    "update with the reserved bit": lambda pair: (
        pair.request(add_sub()) + frame(WINDOW, 0, 0, u32(0x80000005))
    ),
    "update of another stream": lambda pair: pair.request(add_sub()) + frame(WINDOW, 0, 1, u32(5)),
    "data on another stream": lambda pair: pair.request(add_sub()).replace(
        frame(DATA, END_STREAM, pair.next_id - 2, framed(RAW)),
        frame(DATA, END_STREAM, 1, framed(RAW)),
    ),
    "update on another stream": lambda pair: pair.request(add_sub()).replace(
        frame(WINDOW, 0, pair.next_id - 2, u32(5)), frame(WINDOW, 0, 1, u32(5))
    ),
    "even id": lambda pair: _renumbered(pair, pair.next_id - 1),
    "id that was used": lambda pair: _renumbered(pair, 3),
    "id with the reserved bit": lambda pair: _renumbered(pair, pair.next_id | 0x80000000),
    "ping before": lambda pair: frame(PING, 0, 0, bytes(8)) + pair.request(add_sub()),
    "acknowledged ping after": lambda pair: pair.request(add_sub()) + frame(PING, ACK, 0, bytes(8)),
    "settings before": lambda pair: (
        frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW, 100_000)) + pair.request(add_sub())
    ),
}


def _new(pair: Pair) -> int:
    pair.next_id += 2
    return pair.next_id - 2


def _renumbered(pair: Pair, stream_id: int) -> bytes:
    return (
        frame(HEADERS, END_HEADERS, stream_id, BLOCK)
        + frame(WINDOW, 0, stream_id, u32(5))
        + frame(DATA, 1, stream_id, framed(RAW))
    )


class TestLeftToTheFullPath:
    @pytest.mark.parametrize("name", ODD)
    async def test_other_bytes(self, pair: Pair, name: str) -> None:
        await warm(pair)
        pair.feed(ODD[name](pair))
        await pair.check()
        for _ in range(2):
            pair.feed(pair.request(add_sub()))
            await pair.check()

    @pytest.mark.parametrize(
        "name", ["deadline", "end comes later", "two frames of data", "padding", "ping before"]
    )
    async def test_it_was_the_full_path(self, pair: Pair, name: str) -> None:
        await warm(pair)
        pair.feed(ODD[name](pair))
        await pair.check(num_fast=2)

    async def test_a_deadline_each_time(self, pair: Pair) -> None:
        for _ in range(4):
            pair.feed(pair.request(add_sub(), block=with_headers((b"grpc-timeout", b"100S"))))
            await pair.check(num_fast=0)
        assert pair.fast.core.requests[3].deadline_ns == pair.fast.clock.now_ns() + 100_000_000_000

    @pytest.mark.parametrize("cut", [1, 9, 60, 130, 400])
    async def test_reads_that_end_anywhere(self, pair: Pair, cut: int) -> None:
        await warm(pair)
        data = b"".join(pair.request(add_sub(value), connection_update=9) for value in range(6))
        for start in range(0, len(data), cut):
            for rig in pair.rigs:
                rig.feed(data[start : start + cut])
            await pair.check()
        assert len(pair.fast.core.requests) == 9

    @pytest.mark.parametrize("kind", [DATA, HEADERS, GOAWAY, CONTINUATION + 1])
    async def test_a_request_inside_a_frame(self, pair: Pair, kind: int) -> None:
        """The read begins with the bytes of a request, and yet there is none: they are the payload
        of a frame that began before."""
        await warm(pair)
        stream_id = 0 if kind == GOAWAY else _new(pair)
        if kind == DATA:
            pair.feed(frame(HEADERS, END_HEADERS, stream_id, BLOCK))
        request = pair.request(add_sub())
        head = frame(kind, END_HEADERS if kind == HEADERS else 0, stream_id, request)[
            : -len(request)
        ]
        pair.both(lambda rig: rig.feed(head))
        pair.both(lambda rig: rig.feed(request))
        await pair.check(num_fast=2)
        assert len(pair.fast.core.requests) == 3

    async def test_the_same_bytes_mean_something_else(self, pair: Pair) -> None:
        """The header table has changed: its first entry was the path of ModelInfer and is that of
        ServerLive."""

        def path_for_the_table(name: str) -> bytes:
            value = (SERVICE + name).encode()
            return b"\x44" + bytes((len(value),)) + value

        rest = encode_headers(
            [field for field in HEAD if field[0] not in (b":path", b":method", b":scheme")]
        )
        pair.feed(
            pair.request(add_sub(), block=b"\x83\x86" + path_for_the_table("ModelInfer") + rest)
        )
        first_entry = b"\x83\x86\xbe" + rest
        for _ in range(4):
            pair.feed(pair.request(add_sub(), block=first_entry))
        await pair.check(num_fast=3)
        pair.feed(pair.request(b"", block=b"\x83\x86" + path_for_the_table("ServerLive") + rest))
        await pair.check(num_fast=3)
        pair.feed(pair.request(add_sub(), block=first_entry))
        written = await pair.check(num_fast=3)
        (message,) = [data[5:] for kind, _, _, data in frames(written) if kind == DATA]
        assert ServerLiveResponse.FromString(message).live
        assert len(pair.fast.core.requests) == 5

    async def test_tracing(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.core.tracing, "is_on", True))
        pair.feed(pair.request(add_sub()))
        await pair.check(num_fast=2)

    async def test_headers_that_are_forwarded(self) -> None:
        pair = Pair(GrpcOptions(header_forward_pattern="who"))
        for _ in range(3):
            pair.feed(pair.request(add_sub(), block=with_headers((b"who", b"me"))))
            await pair.check(num_fast=0)
        assert pair.fast.core.requests[2].parameters == {"who": "me"}
        await pair.close()

    async def test_answers_that_are_compressed(self) -> None:
        pair = Pair(GrpcOptions(infer_response_compression_level="low"))
        for _ in range(3):
            pair.feed(
                pair.request(
                    one("identity", bytes(2000)),
                    block=with_headers((b"grpc-accept-encoding", b"gzip")),
                )
            )
            await pair.check(num_fast=0)
        await pair.close()


class TestLimits:
    async def test_streams_at_once(self) -> None:
        pair = Pair(GrpcOptions(http2=Http2Limits(max_concurrent_streams=3)))
        await warm(pair)
        await warm(pair, one("held"))
        for _ in range(3):
            pair.feed(pair.request(one("held")))
            await pair.check()
        assert pair.fast.endpoint.counters.streams_refused_total == 3
        await pair.close()

    async def test_control_frames(self) -> None:
        """Answers pay for them: a client that only repeats its request is never refused."""
        pair = Pair(GrpcOptions(http2=Http2Limits(control_frame_burst=20, control_frames_per_s=0)))
        for _ in range(100):
            pair.feed(pair.request(add_sub(), connection_update=5))
            await pair.check()
        assert 60 < pair.num_fast < 100
        await pair.close()

    async def test_control_frames_without_end(self) -> None:
        pair = Pair(GrpcOptions(http2=Http2Limits(control_frame_burst=20, control_frames_per_s=0)))
        for _ in range(40):
            pair.feed(pair.request(one("held"), connection_update=5))
            await pair.check()
        assert pair.fast.transport.is_closed
        assert pair.fast.endpoint.counters.failures["window_update_flood"] == 1
        await pair.close()

    async def test_resets(self) -> None:
        pair = Pair(GrpcOptions(http2=Http2Limits(reset_burst=8, resets_per_s=0)))
        for _ in range(20):
            pair.feed(pair.request(one("held")))
            pair.feed(frame(RST, 0, pair.next_id - 2, u32(8)))
            await pair.check()
        assert pair.fast.endpoint.counters.failures["rapid_reset"] == 1
        await pair.close()

    async def test_the_connections_window_is_given_back(self) -> None:
        pair = Pair(GrpcOptions(http2=Http2Limits(connection_window_bytes=1 << 16)))
        for _ in range(400):
            pair.feed(pair.request(add_sub()))
            await pair.check()
        assert pair.num_fast > 390
        await pair.close()

    async def test_an_answer_that_the_streams_window_does_not_cover(self, pair: Pair) -> None:
        await warm(pair)
        pair.feed(frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW, 50)))
        pair.feed(pair.request(add_sub()))
        await pair.check(num_fast=3)
        assert pair.fast.protocol.sender.pending_bytes > 0
        pair.feed(frame(WINDOW, 0, pair.next_id - 2, u32(1000)))
        await pair.check()
        assert not pair.fast.protocol.connection.streams

    async def test_an_answer_that_the_connections_window_does_not_cover(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.protocol.sender, "window", 100))
        pair.feed(pair.request(add_sub()) + pair.request(add_sub()))
        await pair.check(num_fast=4)
        for _ in range(8):
            pair.feed(pair.request(add_sub(), connection_update=300))
            await pair.check()
        assert not pair.fast.protocol.sender.pending_bytes

    async def test_an_update_that_lets_a_waiting_answer_go(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.protocol.sender, "window", 100))
        pair.feed(pair.request(add_sub()))
        pair.feed(pair.request(one("held")))
        await pair.check()
        assert pair.fast.protocol.sender.pending_bytes
        pair.feed(pair.request(one("held"), connection_update=1000))
        await pair.check(num_fast=5)
        assert not pair.fast.protocol.sender.pending_bytes

    async def test_an_answer_while_the_transport_is_full(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: rig.protocol.pause_writing())
        pair.feed(pair.request(add_sub()))
        await pair.check(num_fast=3)
        pair.both(lambda rig: rig.protocol.resume_writing())
        await pair.check()
        assert not pair.fast.protocol.connection.streams

    async def test_a_window_that_would_overflow(self, pair: Pair) -> None:
        pair.feed(frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW, 0x7FFFFFFF)))
        for _ in range(4):
            pair.feed(pair.request(add_sub()))
            await pair.check(num_fast=0)


class TestInFlight:
    """`held` answers when the test says so."""

    async def test_reset_by_the_client(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.feed(frame(RST, 0, pair.next_id - 2, u32(8)))
        await pair.check()
        assert [held.is_cancelled for held in pair.fast.core.held] == [False, False, True]
        for rig in pair.rigs:
            for held in rig.core.held:
                held.answer()
        assert len(answers(await pair.check())) == 2

    async def test_an_answer_after_a_reset(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.both(lambda rig: rig.core.held[1].answer())
        assert len(answers(await pair.check())) == 1
        pair.both(lambda rig: rig.core.held[2].stream.on_cancel(lambda: None))
        pair.feed(frame(RST, 0, pair.next_id - 2, u32(8)))
        pair.both(lambda rig: rig.core.held[2].answer())
        assert await pair.check() == b""

    async def test_an_update_of_another_stream(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        request = pair.request(one("held"))
        pair.feed(
            request.replace(
                frame(WINDOW, 0, pair.next_id - 2, u32(5)),
                frame(WINDOW, 0, pair.next_id - 4, u32(5)),
            )
        )
        await pair.check()

    @pytest.mark.parametrize(
        "response",
        [
            answer(),
            answer(data=memoryview(b"1234")),
            answer(data=bytearray(b"1234")),
            answer(data=b"12345678"),
            answer(name="OUTPUT1"),
            answer(datatype="INT32"),
            answer(shape=[1, 1]),
            InferResponse("held", "1", "", []),
            InferResponse("held", "2", "", answer().outputs),
            InferResponse("other", "1", "", answer().outputs),
            InferResponse("held", "1", "an id", answer().outputs),
            InferResponse("held", "1", "", answer().outputs, {"x": 1}),
            InferResponse("held", "1", "", answer().outputs, error=invalid_arg("no")),
            InferResponse("held", "1", "", answer().outputs * 2),
        ],
    )
    async def test_answers_of_all_kinds(self, pair: Pair, response: InferResponse) -> None:
        await warm(pair, one("held"))
        for number in range(3):
            for rig in pair.rigs:
                rig.core.held[number].stream.put(answer() if number < 2 else response, True)
            assert await pair.check() != b""

    async def test_reset_in_the_same_read(self, pair: Pair) -> None:
        """The full path never starts it; the fast path has, and stops it."""
        await warm(pair, one("held"))
        pair.fast.feed(pair.request(one("held")) + frame(RST, 0, pair.next_id - 2, u32(8)))
        assert pair.fast.core.held[3].is_cancelled

    async def test_connection_lost(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.both(lambda rig: rig.transport.close())
        await asyncio.sleep(0)
        assert all(held.is_cancelled for held in pair.fast.core.held)
        await pair.check()

    async def test_more_data_on_its_stream(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.feed(frame(DATA, END_STREAM, pair.next_id - 2, b"more"))
        await pair.check()
        assert pair.fast.core.held[2].is_cancelled

    async def test_draining(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.both(lambda rig: rig.protocol.drain())
        pair.feed(pair.request(one("held")))
        await pair.check(num_fast=3)
        pair.both(lambda rig: rig.protocol.finish_drain())
        pair.feed(pair.request(one("held")))
        await pair.check(num_fast=3)
        for rig in pair.rigs:
            for held in rig.core.held:
                held.answer()
        await pair.check()
        assert pair.fast.transport.is_closed

    async def test_the_server_gives_up(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.both(
            lambda rig: rig.protocol.abort_calls(Status.UNAVAILABLE, "the server is shutting down")
        )
        assert b"shutting down" in await pair.check()
        assert all(held.is_cancelled for held in pair.fast.core.held)

    async def test_the_window_changes(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        pair.feed(frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW, 20)))
        await pair.check()
        for rig in pair.rigs:
            for held in rig.core.held:
                held.answer()
        await pair.check()
        pair.feed(frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW, 20_000)))
        await pair.check()
        assert not pair.fast.protocol.connection.streams

    async def test_a_response_and_then_the_end(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        for rig in pair.rigs:
            for held in rig.core.held:
                held.answer(is_final=False)
        assert await pair.check() == b""
        for rig in pair.rigs:
            for held in rig.core.held[:2]:
                held.stream.close()
        assert len(answers(await pair.check())) == 2
        pair.feed(frame(RST, 0, pair.next_id - 2, u32(8)))
        await pair.check()
        assert pair.fast.core.held[2].is_cancelled

    async def test_the_end_without_a_response(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        for rig in pair.rigs:
            for held in rig.core.held:
                held.stream.close()
        assert b"null response" in await pair.check()

    async def test_answers_of_other_sizes(self, pair: Pair) -> None:
        await warm(pair, one("held"))
        for rig in pair.rigs:
            for size, held in enumerate(rig.core.held):
                held.answer(bytes(4 * size))
        assert len(answers(await pair.check())) == 3


class TestModels:
    async def test_unloaded_and_loaded_again(self, pair: Pair) -> None:
        await warm(pair)
        models = [rig.core.models.pop("add_sub") for rig in pair.rigs]
        pair.feed(pair.request(add_sub()))
        assert b"unknown model" in await pair.check(num_fast=2)
        for rig, model in zip(pair.rigs, models, strict=True):
            rig.core.models["add_sub"] = FakeModel(model.spec)
        pair.feed(pair.request(add_sub()))
        assert len(answers(await pair.check(num_fast=3))) == 1

    async def test_plans_go_with_their_model(self, pair: Pair) -> None:
        await warm(pair)
        plans = pair.fast.frontend.plans
        assert plans is not None
        assert len(plans.cache) == 1
        for rig in pair.rigs:
            old = rig.core.models["add_sub"]
            rig.core.models["add_sub"] = FakeModel(old.spec)
            for callback in old.on_stopped:
                callback()
        assert len(plans.cache) == 0
        before = pair.num_fast
        for value in range(3):
            pair.feed(pair.request(add_sub(value)))
            assert len(answers(await pair.check())) == 1
        await pair.check(num_fast=before + 3)
        assert len(plans.cache) == 1

    async def test_connections_share_plans(self, pair: Pair) -> None:
        await warm(pair)
        plans = pair.fast.frontend.plans
        pair.both(lambda rig: rig.transport.close())
        await asyncio.sleep(0)
        pair.both(lambda rig: rig.connect())
        pair.next_id = 1
        for value in range(3):
            pair.feed(pair.request(add_sub(value)))
            await pair.check()
        assert plans is not None
        assert len(plans.cache) == 1

    async def test_only_the_first_request_is_checked(self, pair: Pair) -> None:
        await warm(pair, count=6)
        assert pair.fast.core.num_validated == pair.num_fast - 1 == 4
        for rig in pair.rigs:
            rig.core.models["add_sub"] = FakeModel(rig.core.models["add_sub"].spec)
        await warm(pair, add_sub(batch=3), count=3)
        assert pair.fast.core.num_validated == 6

    async def test_a_model_that_looks_at_the_data(self, pair: Pair) -> None:
        await warm(pair, one("classes", bytes(16)), count=6)
        assert pair.fast.core.num_validated == 0

    async def test_decoupled_from_now_on(self, pair: Pair) -> None:
        await warm(pair)
        for rig in pair.rigs:
            rig.core.models["add_sub"] = rig.core.models["repeat"]
        pair.feed(pair.request(add_sub()))
        assert b"decoupled transaction policy" in await pair.check(num_fast=2)

    async def test_refused_by_its_queue(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        await warm(pair, one("identity"))

        def refuse(rig: Rig) -> None:
            model = rig.core.models["identity"]
            compute = model.compute

            def refused(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
                request.parameters = {"refuse": True}
                compute(request, stream, spec)

            monkeypatch.setattr(model, "compute", refused)

        pair.both(refuse)
        pair.feed(pair.request(one("identity")))
        assert b"Exceeds maximum queue size" in await pair.check(num_fast=3)

    async def test_a_defect(self, pair: Pair) -> None:
        await warm(pair, one("identity"))
        pair.both(lambda rig: setattr(rig.core.models["identity"], "compute", None))
        pair.feed(pair.request(one("identity")))
        assert b"internal error" in await pair.check(num_fast=3)


ENDS = ("even id", "id that was used", "update of nothing", "update that overflows")
"""Frames that end the connection. If the full path reads one together with a request, it reports
the end before the response."""
CHOICES = [
    "same",
    "same",
    "same",
    "id",
    "reset",
    "answer",
    *(name for name in ODD if name not in ENDS),
]


@given(st.lists(st.sampled_from(CHOICES), max_size=25))
@settings(max_examples=60, deadline=None)
def test_any_order(choices: list[str]) -> None:
    asyncio.run(_compare(choices))


async def _compare(choices: list[str]) -> None:
    pair = Pair()
    for choice in choices:
        if choice == "same":
            pair.feed(pair.request(add_sub(), connection_update=300))
        elif choice == "id":
            pair.feed(pair.request(one("held", request_id="7")))
        elif choice == "reset":
            pair.feed(frame(RST, 0, max(1, pair.next_id - 2), u32(8)))
        elif choice == "answer":
            for rig in pair.rigs:
                for held in rig.core.held:
                    held.answer()
        else:
            pair.feed(ODD[choice](pair))
        await pair.check()
    await pair.close()
