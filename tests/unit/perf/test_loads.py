"""Tests loads on fake channels: the requests in flight, their order, and the records."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from naiad.perf.channels.call import Call, ConnectError, Listener
from naiad.perf.channels.channel_pool import ChannelPool
from naiad.perf.load.closed_loop import ClosedLoop
from naiad.perf.load.level import Level, Mode
from naiad.perf.load.load import ResponseFailureError, Share
from naiad.perf.load.open_loop import OpenLoop
from naiad.perf.load.periodic_loop import PeriodicLoop, PeriodicSteps
from naiad.perf.load.precise_timer import FdTimer, LoopTimer
from naiad.perf.load.request_source import PlainSource, SequenceIds, SequenceSource, SequenceSpan
from naiad.perf.load.sequence_loop import SequenceLoop
from naiad.perf.measure.recorder import Recorder
from tests.unit.perf.fakes import FakeChannel, FakeNetwork

MS = 1_000_000


def concurrency(value: int) -> Level:
    return Level(Mode.CONCURRENCY, value)


def closed(network: FakeNetwork, **options: object) -> ClosedLoop:
    source = PlainSource([b"a", b"b"])
    return ClosedLoop(
        Recorder(has_details=True),
        network.make,
        lambda: source,
        clock_ns=network.clock.now_ns,
        **options,
    )


async def test_closed_loop_keeps_the_concurrency() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(3), Share())
    assert len(network.busy) == load.num_in_flight == 3
    network.clock.skip(5 * MS)
    network.channels[1].finish()
    assert len(network.busy) == 3
    records = load.recorder.collect()
    assert list(records.latency) == [5 * MS]
    assert [channel.sent for channel in network.channels] == [[b"a"], [b"b", b"b"], [b"a"]]


async def test_closed_loop_grows_and_shrinks() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(1), Share())
    await load.apply(concurrency(3), Share())
    assert load.num_in_flight == 3
    await load.apply(concurrency(1), Share())
    for channel in network.channels:
        channel.finish()
    assert load.num_in_flight == 1


async def test_closed_loop_stops_after_the_requested_number() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(2), Share(num_requests=3))
    while network.busy:
        network.busy[0].finish()
    assert load.num_sent == 3
    assert load.is_exhausted


@pytest.mark.parametrize("option", ["digest", "check"])
async def test_whatever_cannot_be_read_is_a_failure_and_the_load_goes_on(option: str) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    network = FakeNetwork()
    load = closed(network, **{option: fail})
    await load.apply(concurrency(2), Share())
    network.busy[0].finish(payload=b"?")
    assert len(network.busy) == 2
    assert load.last_error == "a response that cannot be read: RecursionError: too deep"


async def test_stop_waits_for_requests_in_flight() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(2), Share())
    stopping = asyncio.ensure_future(load.stop(5))
    await asyncio.sleep(0)
    assert not stopping.done()
    for channel in network.busy:
        channel.finish()
    await stopping
    assert all(channel.is_closed for channel in network.channels)
    assert load.num_sent == 2


async def test_counts_failures_and_continues() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(1), Share())
    network.channels[0].finish("HTTP 503: busy")
    network.channels[0].finish()
    records = load.recorder.collect()
    assert [failure.message for failure in records.failures] == ["HTTP 503: busy"]
    assert len(records) == 1
    assert not load.broken.is_set()


async def test_a_lost_server_breaks_the_load() -> None:
    network = FakeNetwork()
    load = closed(network)
    await load.apply(concurrency(20), Share())
    for channel in list(network.channels):
        channel.lose()
    assert load.broken.is_set()
    assert load.last_error == "cannot connect"


async def test_a_failed_connection_is_reported_before_sending() -> None:
    network = FakeNetwork()
    load = ClosedLoop(
        Recorder(), lambda listener: _refusing(network, listener), lambda: PlainSource([b"a"])
    )
    with pytest.raises(ConnectError, match="refused"):
        await load.apply(concurrency(1), Share())


def _refusing(network: FakeNetwork, listener: Listener) -> FakeChannel:
    channel = network.make(listener)
    channel.refuses = True
    return channel


async def test_responses_of_a_stream_are_digested() -> None:
    network = FakeNetwork()
    load = closed(network, digest=lambda payload: None if payload == "skip" else payload)
    await load.apply(concurrency(1), Share())
    channel = network.channels[0]
    channel.respond("one")
    channel.respond("skip")
    network.clock.skip(MS)
    channel.respond("two")
    channel.finish()
    detail = load.recorder.collect().details[0]
    assert detail.responses == ["one", "two"]
    assert [at_ns - detail.start_ns for at_ns in detail.response_ns] == [0, MS]


async def test_an_error_within_a_stream_fails_the_request() -> None:
    def digest(payload: str) -> str:
        if payload == "bad":
            raise ResponseFailureError("the engine died")
        return payload

    network = FakeNetwork()
    load = closed(network, digest=digest)
    await load.apply(concurrency(1), Share())
    network.channels[0].respond("good")
    network.channels[0].respond("bad")
    network.channels[0].finish()
    records = load.recorder.collect()
    assert len(records) == 0
    assert [failure.message for failure in records.failures] == ["the engine died"]


async def test_responses_are_checked() -> None:
    network = FakeNetwork()
    load = closed(
        network, check=lambda item, payload: None if payload == item else f"wrong for {item}"
    )
    await load.apply(concurrency(1), Share())
    network.channels[0].finish(payload=0)
    network.channels[0].finish(payload=7)
    records = load.recorder.collect()
    assert len(records) == 1
    assert records.failures[0].message == "wrong for 1"


# Open loops.


async def fire(load: OpenLoop, network: FakeNetwork, at_ns: int) -> None:
    network.clock.skip(at_ns - network.clock.now_ns())
    load._fire()


def open_loop(network: FakeNetwork, max_channels: int = 100) -> OpenLoop:
    return OpenLoop(
        Recorder(),
        network.make,
        PlainSource([b"a"]),
        max_channels=max_channels,
        clock_ns=network.clock.now_ns,
    )


async def test_latency_counts_from_the_intended_time() -> None:
    network = FakeNetwork()
    load = open_loop(network)
    start = network.clock.now_ns() + MS
    await load.apply(Level(Mode.REQUEST_RATE, 100), Share(start_ns=start))
    await fire(load, network, start + 25 * MS)
    assert load.num_in_flight == 3, "at 0, 10 and 20 ms"
    network.clock.skip(start + 30 * MS - network.clock.now_ns())
    for channel in network.busy:
        channel.finish()
    records = load.recorder.collect()
    assert sorted(records.latency // MS) == [10, 20, 30]
    assert sorted(records.late // MS) == [5, 15, 25]
    await load.stop()


async def test_requests_without_a_free_channel_are_queued() -> None:
    network = FakeNetwork()
    load = open_loop(network, max_channels=2)
    start = network.clock.now_ns()
    await load.apply(Level(Mode.REQUEST_RATE, 1000), Share(start_ns=start))
    await fire(load, network, start + 3 * MS)
    assert (load.num_in_flight, load.num_queued) == (2, 2)
    network.clock.skip(MS)
    network.busy[0].finish()
    assert (load.num_in_flight, load.num_queued) == (2, 1)
    for channel in [*network.busy, *network.busy]:
        if channel.calls:
            channel.finish()
    await load.stop(0)


async def test_a_replay_ends() -> None:
    network = FakeNetwork()
    load = open_loop(network)
    start = network.clock.now_ns()
    await load.apply(Level(Mode.REPLAY, 2.0, times=[0.0, 0.01]), Share(start_ns=start))
    await fire(load, network, start + 5 * MS)
    assert load.is_exhausted
    assert load.num_sent == 2
    for channel in network.busy:
        channel.finish()
    await load.stop()


def test_schedules() -> None:
    rate = Level(Mode.REQUEST_RATE, 4)
    assert list(itertools.islice(rate.schedule(0), 3)) == [0, 250 * MS, 500 * MS]
    assert list(itertools.islice(rate.schedule(0, 1, 2), 2)) == [250 * MS, 750 * MS]
    custom = Level(Mode.INTERVALS, 1, times=[1000, 2000])
    assert list(itertools.islice(custom.schedule(0), 4)) == [MS, 3 * MS, 4 * MS, 6 * MS]
    poisson = list(itertools.islice(Level(Mode.REQUEST_RATE, 1000, "poisson").schedule(0), 5000))
    assert poisson == sorted(poisson)
    assert 4.5e9 < poisson[-1] < 5.5e9
    shares = [Level(Mode.CONCURRENCY, 7).share(number, 3) for number in range(3)]
    assert shares == [3, 2, 2]


async def test_pool_reuses_the_last_channel() -> None:
    network = FakeNetwork()
    pool = ChannelPool(lambda: network.make(open_loop(network)), 3)
    await pool.warm(2)
    assert all(channel.is_open for channel in network.channels)
    first, second, third = pool.acquire(), pool.acquire(), pool.acquire()
    assert pool.acquire() is None
    assert second is not None
    pool.release(second)
    assert pool.acquire() is second
    assert {first, third} <= set(network.channels)


@pytest.mark.parametrize("kind", [FdTimer, LoopTimer])
async def test_timers_wake_and_can_be_set_again(kind: type[FdTimer | LoopTimer]) -> None:
    import time

    woken = asyncio.Event()
    timer = kind(woken.set)
    timer.set(time.monotonic_ns() + 3600 * 1_000_000_000)
    timer.set(time.monotonic_ns() + MS)
    async with asyncio.timeout(60):
        await woken.wait()
    timer.close()


# Sequences.


def plan(lengths: list[int], **options: float) -> SequenceSpan:
    def encode(stream: int, step: int, sequence: int, is_start: bool, is_end: bool) -> bytes:
        return (
            f"{sequence}:{stream}.{step}{'S' if is_start else ''}{'E' if is_end else ''}".encode()
        )

    return SequenceSpan(lengths, encode, SequenceIds(), **options)  # type: ignore[arg-type]


def test_a_sequence_uses_the_steps_of_its_stream() -> None:
    source = SequenceSource(plan([2, 3]))
    assert [source.next().data.decode() for _ in range(6)] == [
        "1:0.0S",
        "1:0.1E",
        "2:1.0S",
        "2:1.1",
        "2:1.2E",
        "3:0.0S",
    ]


def test_sequence_length_varies_around_its_base() -> None:
    source = SequenceSource(plan([1], base_length=10, variation_percent=20))
    lengths = []
    for _ in range(200):
        length = 1
        while not source.next().data.endswith(b"E"):
            length += 1
        lengths.append(length)
    assert set(lengths) <= set(range(8, 13))
    assert len(set(lengths)) > 2


def test_sequence_ids_are_reused_without_collision() -> None:
    ids = SequenceIds(5, 8)
    first, second = ids.acquire(), ids.acquire()
    ids.release(first)
    assert (first, second, ids.acquire(), ids.acquire()) == (5, 6, 7, 5)


async def test_closed_loop_ends_open_sequences_when_it_stops() -> None:
    network = FakeNetwork()
    shared = plan([3])
    load = ClosedLoop(
        Recorder(), network.make, lambda: SequenceSource(shared), clock_ns=network.clock.now_ns
    )
    await load.apply(concurrency(1), Share())
    stopping = asyncio.ensure_future(load.stop(5))
    await asyncio.sleep(0)
    network.channels[0].finish()
    network.channels[0].finish()
    await stopping
    assert network.channels[0].sent == [b"1:0.0S", b"1:0.1E"]


async def test_sequences_at_a_rate_keep_their_order() -> None:
    network = FakeNetwork()
    shared = plan([3])
    load = SequenceLoop(
        Recorder(),
        network.make,
        [SequenceSource(shared) for _ in range(2)],
        is_serial=True,
        clock_ns=network.clock.now_ns,
    )
    start = network.clock.now_ns()
    await load.apply(Level(Mode.REQUEST_RATE, 1000), Share(start_ns=start))
    await fire(load, network, start + 3 * MS)
    first, second = network.channels[:2]
    assert (first.sent, second.sent) == ([b"1:0.0S"], [b"2:0.0S"])
    first.finish()
    assert first.sent == [b"1:0.0S", b"1:0.1"]
    await load.stop(0)


# Growing bursts.


async def test_periodic_burst_grows_with_responses() -> None:
    network = FakeNetwork()
    load = PeriodicLoop(
        Recorder(),
        network.make,
        PlainSource([b"a"]),
        PeriodicSteps(1, 4, 2, 2),
        clock_ns=network.clock.now_ns,
    )
    await load.apply(Level(Mode.PERIODIC, 1), Share())
    assert load.num_sent == 1
    network.channels[0].respond("x")
    assert load.num_sent == 1
    network.channels[0].respond("x")
    assert load.num_sent == 3
    network.channels[0].respond("x")
    assert load.num_sent == 3, "only the newest requests call for more"
    network.channels[1].finish()
    assert load.num_sent == 4
    assert load.is_exhausted
    for channel in network.busy:
        channel.finish()
    await load.stop()


def test_recorder_collects_windows() -> None:
    recorder = Recorder()
    call = Call(0, 0, 10, 4)
    call.sent_ns, call.written_ns, call.first_byte_ns = 12, 13, 20
    recorder.add(call, 1, 25)
    recorder.add_failure("x", 26)
    records = recorder.collect()
    assert (
        list(records.latency),
        list(records.send),
        list(records.receive),
        list(records.late),
    ) == ([15], [1], [5], [2])
    assert list(records.sequence) == [4]
    assert len(recorder.collect()) == 0
    assert recorder.num_ended == 2
