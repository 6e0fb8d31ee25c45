"""Queues that are limited by the time that requests would wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.core.identity import Identity
from naiad.core.statistics import ModelStatistics
from naiad.errors import Code, NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.build import build_scheduler
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.queue import QueuePolicy
from naiad.scheduling.scheduler import Scheduler
from tests.fakes import FakeClock, FakeInstance, fake_job

MS = 1_000_000
HIGH = 400
"""Requests of 5 ms that wait for 2 s."""
LOW = 20


class Load:
    """A model that executes one request at a time, and its clients."""

    def __init__(self, scheduler: Scheduler | None = None, **options: Any) -> None:
        self.clock = FakeClock()
        self.instance = FakeInstance()
        self.statistics = ModelStatistics("m", 1)
        self.scheduler = scheduler or DynamicScheduler(
            [self.instance],
            BatchRule(1),
            self.clock,
            self.statistics,
            **{"max_queue_wait_s": 2.0, **options},
        )

    def send(self, **fields: Any) -> None:
        self.scheduler.enqueue(fake_job(**fields))

    def serve(self, count: int = 1, ms: float = 5) -> None:
        for _ in range(count):
            self.clock.advance(int(ms * MS))
            self.instance.finish()

    def measure(self, ms: float = 5) -> None:
        """Runs the model until its rate is known, and leaves it with one request in execution."""
        for _ in range(200):
            self.send()
        self.serve(199, ms)
        assert self.scheduler.inflight() == 1

    def fill(self, **fields: Any) -> NaiadError:
        """Sends until a request is refused."""
        for _ in range(2000):
            try:
                self.send(**fields)
            except NaiadError as error:
                return error
        raise AssertionError("nothing was refused")

    def refuses(self, **fields: Any) -> bool:
        try:
            self.send(**fields)
        except NaiadError:
            return True
        return False

    @property
    def num_waiting(self) -> int:
        return self.statistics.pending_request_count


def test_refuses_a_request_that_would_wait_too_long() -> None:
    load = Load()
    load.measure()
    error = load.fill()
    assert load.num_waiting == HIGH
    assert error.code is Code.UNAVAILABLE
    assert error.message == (
        "the model is overloaded: 400 requests wait, which takes about 2 s; the limit is 2 s "
        "(--max-queue-wait-secs)"
    )
    assert error.retry_after_s == 2
    assert load.statistics.failures["REJECTED"] == 1
    assert load.fill().message == (
        "the model is overloaded: 400 requests wait, which takes about 2 s; the limit is 0.1 s "
        "(--max-queue-wait-secs / 20 until nothing waits)"
    )


def test_nothing_is_refused_before_the_rate_is_known() -> None:
    load = Load()
    for _ in range(1000):
        load.send()
    load.serve(20)
    for _ in range(1000):
        load.send()
    load.serve(1)
    assert load.refuses()


def test_admitted_requests_wait_briefly_until_the_overload_ends() -> None:
    load = Load()
    load.measure()
    load.fill()
    while load.num_waiting >= LOW:
        assert load.refuses()
        load.serve()
    load.send()
    assert load.refuses()
    load.serve(LOW + 1)
    assert load.scheduler.inflight() == 0
    load.send()
    load.fill()
    assert load.num_waiting == HIGH


def test_ten_times_the_capacity_keeps_the_latency() -> None:
    load = Load()
    load.measure()
    load.fill()
    load.serve(HIGH - 2)
    for _ in range(LOW - 2):
        load.send()
    load.serve(2)
    load.send()
    for _ in range(1000):
        assert sum(load.refuses() for _ in range(10)) == 9
        load.serve()
        (job,) = load.instance.batches[-1]
        wait_ns = load.clock.now_ns() - job.queue_start_ns
        assert wait_ns <= 100 * MS
    assert load.num_waiting == LOW - 1  # the instance never waits for requests


def test_nothing_is_refused_while_an_instance_is_free() -> None:
    load = Load()
    load.measure()
    load.fill()
    load.instance.running.clear()  # free, and the scheduler has not been told yet
    load.send()
    assert load.statistics.failures["REJECTED"] == 1


def test_slow_models_have_a_queue() -> None:
    load = Load()
    for _ in range(4):
        load.send()
    load.serve(3, ms=10_000)
    error = load.fill()
    assert load.num_waiting == 32
    assert error.retry_after_s == 320
    load.serve(30, ms=10_000)
    assert load.refuses()
    load.serve(ms=10_000)
    load.send()
    assert load.num_waiting == 2


def test_the_rate_is_that_of_all_instances_and_batches() -> None:
    clock, statistics = FakeClock(), ModelStatistics("m", 1)
    instances = [FakeInstance(), FakeInstance()]
    scheduler = DynamicScheduler(
        instances, BatchRule(4, frozenset({4})), clock, statistics, max_queue_wait_s=2.0
    )
    for _ in range(800):
        scheduler.enqueue(fake_job())
    clock.turn()
    while statistics.pending_request_count:
        clock.advance(10 * MS)
        for instance in instances:
            instance.finish()
        clock.turn()
    for _ in range(1600):
        scheduler.enqueue(fake_job())
        clock.turn()
    while statistics.pending_request_count < 1608:
        scheduler.enqueue(fake_job())
    with pytest.raises(NaiadError, match="1608 requests wait, which takes about 2 s"):
        scheduler.enqueue(fake_job())


def test_one_long_pause_is_not_a_slow_model() -> None:
    load = Load()
    load.measure()
    for _ in range(100):
        load.send()
    load.serve(1, ms=3000)
    for _ in range(250):
        load.send()


def test_a_model_that_becomes_slow_is_noticed() -> None:
    load = Load()
    load.measure()
    for _ in range(200):
        load.send()
    load.serve(199, ms=50)
    load.fill()
    assert load.num_waiting == pytest.approx(40, abs=2)


def test_the_first_execution_is_not_measured() -> None:
    load = Load()
    for _ in range(300):
        load.send()
    load.serve(1, ms=60_000)
    load.serve(30)
    for _ in range(100):
        load.send()


def test_the_time_of_a_restart_is_not_measured() -> None:
    load = Load()
    load.measure()
    for _ in range(300):
        load.send()
    load.instance.die()
    load.clock.advance(3000 * MS)
    load.instance.come_back()
    load.serve(2)
    for _ in range(80):
        load.send()


def test_time_without_waiting_requests_is_not_measured() -> None:
    load = Load()
    load.measure()
    leaving = fake_job()
    load.scheduler.enqueue(leaving).deliver_to(lambda response, is_final: None)
    leaving.stream.cancel()
    assert load.num_waiting == 0
    load.clock.advance(60_000 * MS)
    load.instance.finish()
    for _ in range(100):
        load.send()
    load.serve(10)
    load.fill()
    assert load.num_waiting == pytest.approx(HIGH, abs=2)


def test_calls_of_a_model_are_not_refused() -> None:
    load = Load()
    load.measure()
    load.fill()

    class Call:
        def enter(self, job: object, model_name: str, instances: object) -> None:
            raise AssertionError

    load.send(caller=Call())
    load.send(is_admitted=True)  # a later step of an ensemble


def test_another_api_key_still_has_its_part() -> None:
    load = Load()
    load.measure()
    load.fill(identity=Identity("flood"))
    load.send(identity=Identity("other"))
    assert load.refuses(identity=Identity("flood"))


def test_a_higher_priority_does_not_wait_for_a_lower_one() -> None:
    load = Load(priority_levels=2, default_priority_level=2)
    load.measure()
    load.fill(priority=2)
    load.send(priority=1)
    assert load.refuses(priority=2)


def test_the_wait_is_not_limited_by_default() -> None:
    load = Load(max_queue_wait_s=0.0)
    load.measure()
    for _ in range(3000):
        load.send()


@pytest.mark.parametrize(
    ("batching", "is_limited"),
    [
        ({}, True),
        ({"priority_levels": 2, "default_priority_level": 1}, True),
        ({"default_queue_policy": {}}, False),
        ({"default_queue_policy": {"max_queue_size": 0}}, False),
        ({"priority_levels": 2, "priority_queue_policy": {1: {}}}, False),
    ],
)
def test_models_with_a_queue_policy_are_as_in_triton(
    batching: dict[str, Any], is_limited: bool
) -> None:
    config = ModelConfig(name="m", dynamic_batching=batching)
    scheduler = build_scheduler(
        config,
        [FakeInstance()],
        FakeClock(),
        ModelStatistics("m", 1),
        Path(),
        max_queue_wait_s=2.0,
    )
    assert isinstance(scheduler, DynamicScheduler)
    assert (scheduler._wait_limit is not None) == is_limited


def test_an_explicit_size_comes_first() -> None:
    load = Load(default_policy=QueuePolicy(), max_queue_size=10)
    for _ in range(11):
        load.send()
    load.serve(10)
    load.send()
    assert load.fill().message == "Exceeds maximum queue size"
