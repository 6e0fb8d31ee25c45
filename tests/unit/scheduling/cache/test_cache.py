"""The response cache: keys, what is kept in memory, and the scheduler in front of which it
stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, internal, unavailable
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.cache.cache import CachedResponse, Key, cache_key
from naiad.scheduling.cache.caching import CachingScheduler
from naiad.scheduling.cache.local_cache import LocalCache
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.scheduler import Resizable
from tests.fakes import FakeClock

SPEC = ModelSpec(
    "m", 1, [1], "", 0, {}, {name: TensorSpec(name, "UINT8", [-1], [-1]) for name in ("Y", "Z")}
)


def request(data: bytes = b"x", shape: list[int] | None = None, **fields: Any) -> InferRequest:
    return InferRequest(
        "m",
        [Tensor("A", "UINT8", shape or [len(data)], data), Tensor("B", "UINT8", [1], b"b")],
        **fields,
    )


def entry(size: int) -> CachedResponse:
    return CachedResponse([Tensor("Y", "UINT8", [size], bytes(size))], {}, ["Y", "Z"])


# Keys.


def test_the_same_request_has_the_same_key_whatever_its_id_and_order() -> None:
    first = request(id="1")
    second = request(id="2", priority=3, timeout_us=5)
    second.inputs.reverse()
    assert cache_key(first, SPEC) == cache_key(second, SPEC)
    assert cache_key(request(requested_outputs=["Z"]), SPEC) == cache_key(first, SPEC)


@pytest.mark.parametrize(
    "other",
    [
        request(b"y"),
        request(b"x", [1, 1]),
        request(parameters={"k": 1}),
        request(identity=Identity("ab12cd34")),
        InferRequest("m", [Tensor("A", "UINT8", [1], b"x")]),
        InferRequest("m", [Tensor("A", "INT8", [1], b"x"), Tensor("B", "UINT8", [1], b"b")]),
        InferRequest("m", [Tensor("A", "UINT8", [2], b"xb"), Tensor("B", "UINT8", [0], b"")]),
    ],
)
def test_everything_that_the_response_may_depend_on_changes_the_key(other: InferRequest) -> None:
    assert cache_key(other, SPEC) != cache_key(request(), SPEC)


def test_a_client_does_not_find_the_response_of_another() -> None:
    keys = [
        cache_key(request(identity=identity), SPEC)
        for identity in (None, Identity("a"), Identity("b"), Identity("a", "renamed"))
    ]
    assert len(set(keys)) == 3
    assert keys[1] == keys[3]


def test_models_and_versions_have_keys_of_their_own() -> None:
    keys = {
        cache_key(request(), msgspec.structs.replace(SPEC, name=name, version=v))
        for name in ("m", "n")
        for v in (1, 2)
    }
    assert len(keys) == 4


# In memory.


class Found:
    def __init__(self) -> None:
        self.answers: list[CachedResponse | None] = []

    def __call__(self, found: CachedResponse | None) -> None:
        self.answers.append(found)


def has(cache: LocalCache, key: Key) -> bool:
    found = Found()
    cache.look_up(key, found)
    return found.answers != [None]


def test_the_least_recently_used_response_is_evicted_first() -> None:
    cache = LocalCache(3 * entry(1000).num_bytes)
    for key in (b"1", b"2", b"3"):
        cache.insert(key, entry(1000))
    assert has(cache, b"1")
    cache.insert(b"4", entry(1000))
    assert [has(cache, key) for key in (b"1", b"2", b"3", b"4")] == [True, False, True, True]
    assert cache.read().num_evictions == 1


def test_it_never_holds_more_than_its_size() -> None:
    cache = LocalCache(10_000)
    for number in range(200):
        cache.insert(bytes([number]), entry(number * 37 % 3000))
        assert cache.num_bytes <= 10_000
    assert len(cache) > 0


def test_a_response_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = LocalCache(2000)
    cache.insert(b"1", entry(100))
    cache.insert(b"2", entry(5000))
    assert has(cache, b"1")
    assert not has(cache, b"2")


def test_inserting_again_replaces() -> None:
    cache = LocalCache(10_000)
    cache.insert(b"1", entry(100))
    cache.insert(b"1", entry(200))
    assert len(cache) == 1
    assert cache.num_bytes == entry(200).num_bytes


async def test_closing_empties_it() -> None:
    cache = LocalCache(10_000)
    await cache.start()
    cache.insert(b"1", entry(100))
    await cache.close()
    assert (len(cache), cache.num_bytes) == (0, 0)


# In front of a scheduler.


class InnerScheduler:
    def __init__(self) -> None:
        self.jobs: list[tuple[Job, ResponseStream]] = []
        self.refusal: NaiadError | None = None
        self.is_stopped = False
        self.resizable: Resizable | None = None
        self.sequences = None

    def enqueue(self, job: Job) -> ResponseStream:
        if self.refusal is not None:
            raise self.refusal
        stream = ResponseStream()
        self.jobs.append((job, stream))
        return stream

    def inflight(self) -> int:
        return len(self.jobs)

    async def stop(self) -> None:
        self.is_stopped = True

    def answer(
        self, data: bytes | bytearray = b"y", error: NaiadError | None = None, **fields: Any
    ) -> None:
        job, stream = self.jobs.pop(0)
        outputs = [] if error is not None else [Tensor("Y", "UINT8", [len(data)], memoryview(data))]
        stream.put(InferResponse("m", "1", job.request.id, outputs, error=error, **fields), True)


class SlowCache:
    """Answers when told."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[CachedResponse | None], None]] = []
        self.inserted: dict[Key, CachedResponse] = {}

    def look_up(self, key: Key, on_lookup: Callable[[CachedResponse | None], None]) -> None:
        self.waiting.append(on_lookup)

    def insert(self, key: Key, response: CachedResponse) -> None:
        self.inserted[key] = response

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Bench:
    def __init__(self, cache: Any = None) -> None:
        self.inner = InnerScheduler()
        self.clock = FakeClock()
        self.statistics = ModelStatistics("m", 1)
        self.scheduler = CachingScheduler(
            self.inner, cache or LocalCache(1 << 20), SPEC, self.clock, self.statistics
        )
        self.answers: dict[str, InferResponse | None] = {}

    def send(self, id: str, data: bytes = b"x", **fields: Any) -> ResponseStream:
        stream = self.scheduler.enqueue(Job(request(data, id=id, **fields), ResponseStream()))
        stream.deliver_to(lambda response, is_final: self.answers.__setitem__(id, response))
        return stream

    def outputs(self, id: str) -> list[bytes]:
        answer = self.answers[id]
        assert answer is not None
        return [bytes(tensor.data) for tensor in answer.outputs]


def test_it_is_resizable_when_the_scheduler_behind_it_is() -> None:
    bench = Bench()
    assert bench.scheduler.resizable is None
    dynamic = DynamicScheduler([], BatchRule(1), bench.clock, bench.statistics)
    bench.inner.resizable = dynamic.resizable
    assert bench.scheduler.resizable is dynamic


def test_the_second_time_the_model_is_not_asked() -> None:
    bench = Bench()
    bench.send("1")
    bench.inner.answer(b"first", parameters={"p": 1})
    bench.send("2")
    assert bench.inner.jobs == []
    assert bench.outputs("2") == [b"first"]
    answer = bench.answers["2"]
    assert answer is not None
    assert (answer.id, answer.parameters) == ("2", {"p": 1})
    statistics = bench.statistics
    assert (statistics.cache_hit.count, statistics.cache_miss.count, statistics.success.count) == (
        1,
        1,
        1,
    )
    assert (statistics.inference_count, statistics.execution_count) == (0, 0)


def test_a_cached_response_serves_only_requests_for_its_outputs() -> None:
    y, z = Tensor("Y", "UINT8", [1], b"y"), Tensor("Z", "UINT8", [1], b"z")
    both = CachedResponse([y, z], {}, ["Y", "Z"])
    assert both.select(["Z", "Y"]) == [z, y]
    assert both.select(["Z"]) == [z]
    assert CachedResponse([y], {}, ["Y"]).select(["Y", "Z"]) is None
    assert CachedResponse([y], {}, ["Y", "Z"]).select(["Y", "Z"]) == [y]
    bench = Bench()
    bench.send("1", requested_outputs=["Y"])
    bench.inner.answer(b"first")
    bench.send("2")
    assert len(bench.inner.jobs) == 1
    bench.inner.answer(b"second")
    bench.send("3", requested_outputs=["Y"])
    assert bench.outputs("3") == [b"second"]


def test_the_cache_keeps_a_copy() -> None:
    bench = Bench()
    memory = bytearray(b"first")
    bench.send("1")
    bench.inner.answer(memory)
    memory[:] = b"other"
    bench.send("2")
    assert bench.outputs("2") == [b"first"]


def test_errors_are_not_kept() -> None:
    bench = Bench()
    bench.send("1")
    bench.inner.answer(error=internal("no"))
    bench.send("2")
    assert len(bench.inner.jobs) == 1


def test_a_refusal_by_the_scheduler_is_delivered() -> None:
    bench = Bench()
    bench.inner.refusal = unavailable("Exceeds maximum queue size")
    bench.send("1")
    answer = bench.answers["1"]
    assert answer is not None
    assert answer.error is not None
    assert answer.error.code is Code.UNAVAILABLE
    assert bench.scheduler.inflight() == 0


def test_cancelling_reaches_the_model() -> None:
    bench = Bench()
    stream = bench.send("1")
    stream.cancel()
    assert bench.inner.jobs[0][1].is_cancelled


def test_a_slow_cache() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    bench.send("hit")
    bench.send("miss")
    assert bench.scheduler.inflight() == 2
    cache.waiting[0](entry(3))
    assert bench.outputs("hit") == [bytes(3)]
    cache.waiting[1](None)
    assert len(bench.inner.jobs) == 1
    bench.inner.answer(b"new")
    assert [bytes(response.outputs[0].data) for response in cache.inserted.values()] == [b"new"]


def test_cancelled_while_the_cache_is_asked() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    bench.send("1").cancel()
    cache.waiting[0](None)
    assert bench.inner.jobs == []
    assert bench.answers == {"1": None}
    assert bench.statistics.failures["CANCELED"] == 1


async def test_stop_waits_for_look_ups_and_then_for_the_model() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    bench.send("1")
    stopping = asyncio.ensure_future(bench.scheduler.stop())
    await asyncio.sleep(0)
    with pytest.raises(NaiadError, match="has stopped accepting"):
        bench.send("2")
    assert not bench.inner.is_stopped
    cache.waiting[0](entry(1))
    await stopping
    assert bench.inner.is_stopped
