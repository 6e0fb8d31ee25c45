"""Large requests the fast path: their last tensor is received into memory of its own, and all else
is as the full path has it.

As in test_fast_path_grpc.py the same bytes go both paths and everything is compared.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec
from naiad.fastpath import plan_cache
from naiad.fastpath.call import FastCall
from naiad.fastpath.grpc_arrival import Arrival
from naiad.fastpath.grpc_stream import FastStream
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import Status
from naiad.transport.http2.limits import Http2Limits
from tests.fakes.model import SPECS, FakeModel
from tests.unit.transport.http2.http2_rig import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    RST,
    WINDOW,
    frame,
    setting,
    u32,
)
from tests.unit.transport.http2.http2_rig import SETTINGS as SETTINGS_FRAME
from tests.wire.fast_path_grpc_pair import (
    BLOCK,
    INITIAL_WINDOW,
    Pair,
    add_sub,
    answers,
    count_learning,
    one,
    with_headers,
)
from tests.wire.grpc_rig import Rig, framed

ELEMENTS = 50_000
FULL_READ_BYTES = 1 << 16


def large(value: float = 1.0, request_id: str = "", elements: int = ELEMENTS) -> ModelInferRequest:
    return one("identity", np.full(elements, value, np.float32).tobytes(), request_id)


def two_inputs(first_elements: int, second_elements: int) -> ModelInferRequest:
    message = ModelInferRequest(model_name="identity")
    for at, elements in enumerate((first_elements, second_elements)):
        message.inputs.add(name=f"INPUT{at}", datatype="FP32", shape=[elements])
        message.raw_input_contents.append(np.full(elements, at, np.float32).tobytes())
    return message


@pytest.fixture(autouse=True)
def learns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a large request gets a plan when it comes again."""
    monkeypatch.setattr(plan_cache, "LARGE_BYTES", 1 << 30)


async def warm(pair: Pair, count: int = 3) -> None:
    for value in range(count):
        pair.feed(pair.request(large(value)))
        await pair.check()
    await pair.check(num_fast=count - 1)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    await pair.close()


def next_read_bytes(pair: Pair) -> int:
    return len(pair.fast.protocol.get_buffer(-1))


RAW = large().SerializeToString()


def _padded(pair: Pair) -> bytes:
    stream_id, pair.next_id = pair.next_id, pair.next_id + 2
    message = b"\3" + framed(RAW) + bytes(3)
    return frame(HEADERS, END_HEADERS, stream_id, BLOCK) + frame(
        DATA, END_STREAM | PADDED, stream_id, message
    )


def _in_two_frames(pair: Pair) -> bytes:
    stream_id, pair.next_id = pair.next_id, pair.next_id + 2
    message = framed(RAW)
    return (
        frame(HEADERS, END_HEADERS, stream_id, BLOCK)
        + frame(DATA, 0, stream_id, message[:100_000])
        + frame(DATA, END_STREAM, stream_id, message[100_000:])
    )


OTHERS: dict[str, Callable[[Pair], bytes]] = {
    "a little longer": lambda pair: pair.request(large(elements=ELEMENTS + 1)),
    "much longer": lambda pair: pair.request(large(elements=10 * ELEMENTS)),
    "an id": lambda pair: pair.request(large(request_id="new")),
    "another model": lambda pair: pair.request(one("held", bytes(4 * ELEMENTS))),
    "no model": lambda pair: pair.request(one("nobody", bytes(4 * ELEMENTS))),
    "a decoupled model": lambda pair: pair.request(one("tap", bytes(4 * ELEMENTS))),
    "another datatype": lambda pair: pair.request(RAW.replace(b"FP32", b"INT8")),
    "another update": lambda pair: pair.request(large(), update=6),
    "a deadline": lambda pair: pair.request(
        large(), block=with_headers((b"grpc-timeout", b"100S"))
    ),
    "end comes later": lambda pair: (
        pair.request(large(), flags=0) + frame(DATA, END_STREAM, pair.next_id - 2)
    ),
    "compressed flag": lambda pair: pair.request(large()).replace(framed(RAW), framed(RAW, 1)),
    "one tensor more": lambda pair: pair.request(RAW + b"\x3a\x01a"),
    "no message at all": lambda pair: pair.request(bytes(200_000)),
    "padding": lambda pair: _padded(pair),
    "two frames of data": lambda pair: _in_two_frames(pair),
    "another frame before it": lambda pair: frame(PING, 0, 0, b"12345678") + pair.request(large()),
}


class TestEqual:
    @pytest.mark.parametrize("update", [0, 5])
    @pytest.mark.parametrize("num_updates", [0, 1, 4, 5])
    @pytest.mark.parametrize("request_id", ["", "7", "%b%%", "id-ö"])
    async def test_one_by_one(
        self, pair: Pair, update: int, num_updates: int, request_id: str
    ) -> None:
        for value in range(6):
            request = pair.request(large(value, request_id), update=update)
            pair.feed(frame(WINDOW, 0, 0, u32(300)) * (num_updates if value else 0) + request)
            response = answers(await pair.check())[pair.next_id - 2]
            assert response.id == request_id
            assert (
                np.frombuffer(response.raw_output_contents[0], np.float32).tolist()
                == [value] * ELEMENTS
            )
        # The second request is learned when nothing precedes it. More than four updates
        # take the full path, and the request with them.
        await pair.check(num_fast=5 if num_updates == 0 else 0)

    @pytest.mark.parametrize(("num_updates", "num_fast"), [(0, 7), (1, 7), (4, 7), (5, 2)])
    async def test_updates_of_the_connections_window_before_it(
        self, pair: Pair, num_updates: int, num_fast: int
    ) -> None:
        await warm(pair)
        for _ in range(5):
            pair.feed(frame(WINDOW, 0, 0, u32(300)) * num_updates + pair.request(large()))
            await pair.check()
        await pair.check(num_fast=num_fast)

    async def test_a_plan_is_made_when_the_request_comes_again(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        for value in range(6):
            pair.feed(pair.request(large(value)))
            await pair.check()
        await pair.check(num_fast=4)

    async def test_several_at_once(self, pair: Pair) -> None:
        """Each begins where the last one ended, in whatever the transport reads next."""
        await warm(pair)
        pair.feed(
            b"".join(pair.request(large(value), connection_update=value) for value in range(5))
        )
        assert len(answers(await pair.check(num_fast=7))) == 5

    async def test_with_small_ones(self, pair: Pair) -> None:
        """Both kinds are known, and a read that was made short for large requests does not cut many
        small ones to pieces for ever."""
        for message in (add_sub(), add_sub(), large(), large()):
            pair.feed(pair.request(message))
            await pair.check()
        before = pair.num_fast
        assert before == 3
        assert next_read_bytes(pair) < FULL_READ_BYTES
        for _ in range(3):
            pair.feed(
                pair.request(large())
                + b"".join(pair.request(add_sub(value)) for value in range(100))
            )
            assert len(answers(await pair.check())) == 101
            assert next_read_bytes(pair) == FULL_READ_BYTES
        assert pair.num_fast > before + 6

    async def test_small_ones_after_an_update(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The update may have been a large request's; they are not learned again for that."""
        for message in (add_sub(), add_sub(), large(), large(), add_sub()):
            pair.feed(pair.request(message))
            await pair.check()
        learned = count_learning(monkeypatch)
        before = pair.num_fast
        for value in range(10):
            pair.feed(frame(WINDOW, 0, 0, u32(300)) + pair.request(add_sub(value)))
            await pair.check()
        await pair.check(num_fast=before + 10)
        assert not learned

    async def test_the_last_of_two_inputs(self, pair: Pair) -> None:
        for _ in range(4):
            pair.feed(pair.request(two_inputs(16, ELEMENTS)))
            await pair.check()
        await pair.check(num_fast=3)

    async def test_two_large_inputs(self, pair: Pair) -> None:
        for _ in range(4):
            pair.feed(pair.request(two_inputs(ELEMENTS, ELEMENTS)))
            await pair.check()
        await pair.check(num_fast=0)

    @pytest.mark.parametrize("name", list(OTHERS))
    async def test_others_take_the_full_path(self, pair: Pair, name: str) -> None:
        await warm(pair)
        pair.feed(OTHERS[name](pair))
        await pair.check()
        pair.feed(pair.request(large(7)))
        assert pair.num_fast <= 4
        response = answers(await pair.check())[pair.next_id - 2]
        assert response.raw_output_contents[0] == np.full(ELEMENTS, 7, np.float32).tobytes()

    async def test_tracing(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.core.tracing, "is_on", True))
        pair.feed(pair.request(large()))
        await pair.check(num_fast=2)

    async def test_it_is_received_where_the_model_wants_it(self, pair: Pair) -> None:
        await warm(pair, 4)
        request = pair.fast.core.requests[-1]
        assert np.shares_memory(
            np.frombuffer(request.inputs[0].data, np.uint8),
            np.frombuffer(pair.fast.core.buffers[-1], np.uint8),
        )
        assert len(pair.fast.core.buffers[-1]) == 4 * ELEMENTS

    async def test_only_the_first_request_is_checked(self, pair: Pair) -> None:
        await warm(pair, 6)
        assert pair.fast.core.num_validated == 4

    async def test_nothing_is_left_to_the_garbage_collector(self, pair: Pair) -> None:
        for rig in pair.rigs:
            rig.core.keeps_requests = False
        gc.collect()
        gc.disable()
        try:
            await warm(pair)
            pair.feed(pair.request(large()))
            await pair.check()
            assert [
                found for found in gc.get_objects() if type(found) in (FastCall, FastStream)
            ] == []
            _begin(pair, pair.request(large()))
            pair.both(lambda rig: rig.protocol.abort_calls(Status.UNAVAILABLE, "over"))
            await pair.check()
            # Its stream lives on in the connection, whose frame it is; its memory does not.
            assert [found for found in gc.get_objects() if type(found) is Arrival] == []
            assert [found.arriving for found in gc.get_objects() if type(found) is FastStream] == [
                None
            ]
            assert not any(type(found) is FastCall for found in gc.get_objects())
        finally:
            gc.enable()


def _begin(pair: Pair, request: bytes, num_bytes: int = 100_000) -> bytes:
    """Feeds the beginning to both; returns the rest."""
    pair.both(lambda rig: rig.feed(request[:num_bytes]))
    return request[num_bytes:]


class TestArrival:
    """What happens between the beginning of a large request and its end."""

    @pytest.mark.parametrize("num_bytes", [1000, 70_000, 190_000, 199_999, 200_100])
    async def test_in_two_parts(self, pair: Pair, num_bytes: int) -> None:
        """Also so that little is missing, which comes by the connection's buffer."""
        await warm(pair)
        rest = _begin(pair, pair.request(large(5)), num_bytes)
        await pair.check(num_fast=3)
        assert pair.fast.endpoint.budget.used_bytes > 0
        pair.both(lambda rig: rig.feed(rest + frame(PING, 0, 0, b"12345678")))
        response = answers(await pair.check())[pair.next_id - 2]
        assert response.raw_output_contents[0] == np.full(ELEMENTS, 5, np.float32).tobytes()
        pair.fast.forget_requests()
        pair.full.forget_requests()
        assert pair.fast.endpoint.budget.used_bytes == 0

    async def test_a_beginning_that_is_too_short(self, pair: Pair) -> None:
        """Memory is taken only when some part of the message is here: as the full path does it."""
        await warm(pair)
        request = pair.request(large())
        buffers = len(pair.fast.core.buffers)
        rest = _begin(pair, request, 400)
        await pair.check(num_fast=2)
        assert len(pair.fast.core.buffers) == buffers
        pair.both(lambda rig: rig.feed(rest))
        assert len(answers(await pair.check())) == 1

    async def test_connection_lost(self, pair: Pair) -> None:
        await warm(pair)
        _begin(pair, pair.request(large()))
        pair.both(lambda rig: rig.transport.close())
        await pair.check(num_fast=3)
        assert len(pair.fast.core.requests) == 3
        pair.fast.forget_requests()
        pair.full.forget_requests()
        assert pair.fast.endpoint.budget.used_bytes == 0

    async def test_it_stops_arriving(self) -> None:
        pair = Pair(GrpcOptions(request_timeout_s=10))
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        for num_bytes in (50_000, 0, 0):
            part, rest = rest[:num_bytes], rest[num_bytes:]

            def later(rig: Rig, part: bytes = part) -> None:
                rig.feed(part)
                rig.clock.advance(8_000_000_000)
                rig.protocol.deadlines.tick(rig.clock.now_ns())

            pair.both(later)
            await pair.check()
        assert pair.fast.endpoint.counters.failures == {"request_timeout": 1}
        pair.fast.forget_requests()
        pair.full.forget_requests()
        assert pair.fast.endpoint.budget.used_bytes == 0
        pair.both(lambda rig: rig.feed(rest))
        pair.feed(pair.request(large()))
        assert len(answers(await pair.check(num_fast=4))) == 1
        await pair.close()

    async def test_more_than_the_server_will_hold(self) -> None:
        pair = Pair(limit_bytes=2 * 4 * ELEMENTS + 1_000_000)
        await warm(pair)
        pair.both(lambda rig: rig.forget_requests())
        others = [
            (rig.endpoint.budget.open_account(), size) for rig in pair.rigs for size in (2, 4)
        ]
        for other, part in others:
            assert other.charge((2 * 4 * ELEMENTS + 1_000_000) // part)
        pair.feed(pair.request(large()))
        await pair.check(num_fast=3)
        assert pair.fast.endpoint.budget.num_refused == 1
        assert len(pair.fast.core.requests) == 0
        for other, part in others:
            other.release((2 * 4 * ELEMENTS + 1_000_000) // part)
            other.settle()
        await pair.close()

    async def test_the_tensors_before_the_large_one_are_held_too(self) -> None:
        pair = Pair(limit_bytes=2 * (4 * ELEMENTS + 20_000))
        for _ in range(3):
            pair.feed(pair.request(two_inputs(16, ELEMENTS)))
            await pair.check()
            pair.both(lambda rig: rig.forget_requests())
        for _ in range(3):
            pair.feed(pair.request(two_inputs(10_000, ELEMENTS)))
            assert b"holds as many bytes" in await pair.check()
        await pair.check(num_fast=4)
        await pair.close()

    async def test_the_server_gives_up(self, pair: Pair) -> None:
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        pair.both(
            lambda rig: rig.protocol.abort_calls(Status.UNAVAILABLE, "the server is shutting down")
        )
        assert b"shutting down" in await pair.check(num_fast=3)
        pair.both(lambda rig: rig.feed(rest))
        assert len(pair.fast.core.requests) == 3

    async def test_draining(self, pair: Pair) -> None:
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        pair.both(lambda rig: rig.protocol.drain())
        pair.both(lambda rig: rig.protocol.finish_drain())
        pair.both(lambda rig: rig.feed(rest))
        assert len(answers(await pair.check(num_fast=3))) == 1
        assert pair.fast.transport.is_closed

    async def test_the_model_is_unloaded(self, pair: Pair) -> None:
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        pair.both(lambda rig: rig.core.models.pop("identity"))
        pair.both(lambda rig: rig.feed(rest))
        assert b"unknown model" in await pair.check(num_fast=3)

    async def test_the_model_is_another_one(self, pair: Pair) -> None:
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        for rig in pair.rigs:
            rig.core.models["identity"] = FakeModel(rig.core.models["identity"].spec)
        again = pair.fast.core.num_validated
        pair.both(lambda rig: rig.feed(rest))
        assert len(answers(await pair.check(num_fast=3))) == 1
        assert pair.fast.core.num_validated == again  # the new one has looked at it
        pair.feed(pair.request(large()))
        await pair.check(num_fast=4)
        assert pair.fast.core.num_validated == again + 1

    async def test_the_model_is_decoupled_now(self, pair: Pair) -> None:
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        for rig in pair.rigs:
            rig.core.models["identity"] = rig.core.models["repeat"]
        pair.both(lambda rig: rig.feed(rest))
        assert b"decoupled transaction policy" in await pair.check(num_fast=3)

    async def test_the_model_had_batches(self, pair: Pair) -> None:
        plain = pair.fast.core.models["identity"].spec
        for rig in pair.rigs:
            rig.core.models["identity"] = FakeModel(
                msgspec.structs.replace(plain, max_batch_size=ELEMENTS)
            )
        await warm(pair)
        rest = _begin(pair, pair.request(large()))
        for rig in pair.rigs:
            rig.core.models["identity"] = FakeModel(plain)
        pair.both(lambda rig: rig.feed(rest))
        await pair.check(num_fast=3)
        assert [request.batch_size for request in pair.fast.core.requests] == [
            ELEMENTS,
            ELEMENTS,
            ELEMENTS,
            1,
        ]

    @pytest.mark.parametrize(
        "reset",
        [frame(RST, 0, 7, u32(8)), frame(WINDOW, 0, 7, u32(0))],
        ids=["reset", "update of 0"],
    )
    async def test_a_reset_that_comes_with_its_last_bytes(self, pair: Pair, reset: bytes) -> None:
        """The answer, where it is there at once, finds the stream closed."""
        await warm(pair)
        rest = _begin(pair, pair.request(large()), 199_000)
        pair.both(lambda rig: rig.feed(rest + reset))
        assert not answers(await pair.check(num_fast=3))
        pair.feed(pair.request(large()))
        assert len(answers(await pair.check(num_fast=4))) == 1

    async def test_a_defect(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.core.models["identity"], "compute", None))
        pair.feed(pair.request(large()))
        assert b"internal error" in await pair.check(num_fast=3)


class TestWindows:
    async def test_an_answer_that_the_streams_window_does_not_cover(self, pair: Pair) -> None:
        await warm(pair)
        pair.feed(frame(SETTINGS_FRAME, 0, 0, setting(INITIAL_WINDOW, 70_000)))
        pair.feed(pair.request(large()))
        await pair.check(num_fast=3)
        assert pair.fast.protocol.sender.pending_bytes > 0
        pair.feed(frame(WINDOW, 0, pair.next_id - 2, u32(200_000)))
        await pair.check()
        assert not pair.fast.protocol.connection.streams

    async def test_an_answer_while_the_transport_is_full(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: rig.protocol.pause_writing())
        pair.feed(pair.request(large()))
        await pair.check(num_fast=3)
        pair.both(lambda rig: rig.protocol.resume_writing())
        await pair.check()
        assert not pair.fast.protocol.connection.streams

    async def test_an_update_that_lets_a_waiting_answer_go(self, pair: Pair) -> None:
        await warm(pair)
        pair.both(lambda rig: setattr(rig.protocol.sender, "window", 100))
        pair.feed(pair.request(large()))
        await pair.check()
        assert pair.fast.protocol.sender.pending_bytes
        pair.feed(frame(WINDOW, 0, 0, u32(1_000_000)) + pair.request(large()))
        await pair.check()
        assert not pair.fast.protocol.sender.pending_bytes
        assert not pair.fast.protocol.connection.streams

    async def test_the_connections_window_is_given_back(self) -> None:
        pair = Pair(GrpcOptions(http2=Http2Limits(connection_window_bytes=1 << 20)))
        for _ in range(30):
            pair.feed(pair.request(large()))
            await pair.check()
        assert pair.num_fast == 29  # also those whose data makes the next WINDOW_UPDATE due
        await pair.close()

    @pytest.mark.parametrize(
        "options",
        [
            GrpcOptions(http2=Http2Limits(stream_window_bytes=100_000)),
            GrpcOptions(http2=Http2Limits(max_frame_bytes=100_000)),
            GrpcOptions(max_message_bytes=100_000),
        ],
    )
    async def test_beyond_a_limit(self, options: GrpcOptions) -> None:
        pair = Pair(options)
        for _ in range(3):
            pair.feed(pair.request(large()))
            await pair.check(num_fast=0)
        assert not pair.fast.core.requests
        await pair.close()


def _serve(spec: ModelSpec) -> Callable[[Rig], None]:
    """Another copy of a model, or another model, under the name."""
    return lambda rig: rig.core.models.update(identity=FakeModel(spec))


def _later(rig: Rig) -> None:
    rig.clock.advance(40_000_000_000)
    if not rig.transport.is_closed:
        rig.protocol.deadlines.tick(rig.clock.now_ns())


SPEC_OF = {spec.name: spec for spec in SPECS}
ACTIONS: dict[str, Callable[[Rig], object]] = {
    "nothing": lambda rig: None,
    "reload": _serve(SPEC_OF["identity"]),
    "with batches": _serve(msgspec.structs.replace(SPEC_OF["identity"], max_batch_size=ELEMENTS)),
    "decoupled": _serve(SPEC_OF["tap"]),
    "unload": lambda rig: rig.core.models.pop("identity", None),
    "the transport is full": lambda rig: rig.protocol.pause_writing(),
    "the transport is empty": lambda rig: rig.protocol.resume_writing(),
    "time passes": _later,
}
KINDS = [
    "large",
    "large",
    "large",
    "two inputs",
    "small",
    "update",
    "other",
    "reset",
    "smaller windows",
    "larger windows",
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.lists(
                st.tuples(st.integers(1, 150_000), st.sampled_from(list(ACTIONS))), max_size=4
            ),
        ),
        max_size=16,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_order_and_any_reads(conversation: list[tuple[str, list[tuple[int, str]]]]) -> None:
    """And whatever happens between two reads."""
    asyncio.run(_compare(conversation))


def _bytes_of(pair: Pair, kind: str, value: int) -> bytes:
    made: dict[str, Callable[[], bytes]] = {
        "large": lambda: pair.request(large(value)),
        "two inputs": lambda: pair.request(two_inputs(16, ELEMENTS)),
        "small": lambda: pair.request(add_sub(value)),
        "update": lambda: frame(WINDOW, 0, 0, u32(5)),
        "other": lambda: pair.request(large(value, elements=30_000)),
        "reset": lambda: frame(RST, 0, pair.next_id - 2, u32(8)) if pair.next_id > 1 else b"",
        "smaller windows": lambda: frame(SETTINGS_FRAME, 0, 0, setting(INITIAL_WINDOW, 70_000)),
        "larger windows": lambda: (
            frame(SETTINGS_FRAME, 0, 0, setting(INITIAL_WINDOW, 1 << 20))
            + frame(WINDOW, 0, 0, u32(1 << 22))
        ),
    }
    return made[kind]()


async def _compare(conversation: list[tuple[str, list[tuple[int, str]]]]) -> None:
    pair = Pair()
    for value, (kind, reads) in enumerate(conversation):
        data = _bytes_of(pair, kind, value)
        for num_bytes, action in reads:
            read, data = data[:num_bytes], data[num_bytes:]
            for rig in pair.rigs:
                rig.feed(read)
            pair.both(ACTIONS[action])
            await pair.check()
        for rig in pair.rigs:
            rig.feed(data)
        await pair.check()
    await pair.close()
