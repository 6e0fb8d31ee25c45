from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import Code, NaiadError
from naiad.scheduling.batch_growth import ENOUGH_REQUESTS
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.queue import QueuePolicy
from tests.fakes import FakeClock, FakeInstance, fake_job

MS = 1_000_000


class Bench:
    """A scheduler, its instances and its clock, and what came out."""

    def __init__(
        self, rule: BatchRule | None = None, num_instances: int = 1, **options: Any
    ) -> None:
        self.clock = FakeClock()
        self.instances = [FakeInstance() for _ in range(num_instances)]
        self.statistics = ModelStatistics("m", 1)
        rule = rule or BatchRule(8, frozenset({8}))
        self.scheduler = DynamicScheduler(
            self.instances, rule, self.clock, self.statistics, **options
        )
        self.answers: dict[str, InferResponse] = {}
        self.order: list[str] = []

    def send(self, *ids: str, **fields: Any) -> ResponseStream:
        for id in ids:
            stream = self.scheduler.enqueue(fake_job(id, **fields))
            stream.deliver_to(self._take(id))
        return stream

    def _take(self, id: str) -> Any:
        def take(response: InferResponse | None, is_final: bool) -> None:
            assert response is not None
            assert is_final
            self.answers[id] = response
            self.order.append(id)

        return take

    def error(self, id: str) -> NaiadError:
        error = self.answers[id].error
        assert error is not None
        return error


def test_requests_of_one_iteration_of_the_loop_share_a_batch() -> None:
    bench = Bench()
    bench.send("a", "b", "c")
    assert bench.instances[0].ids == []
    bench.clock.turn()
    assert bench.instances[0].ids == [["a", "b", "c"]]


def test_requests_that_arrive_while_the_instance_is_busy_form_the_next_batch() -> None:
    bench = Bench()
    bench.send("a")
    bench.clock.turn()
    bench.send("b", "c")
    bench.clock.turn()
    assert bench.instances[0].ids == [["a"]]
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.instances[0].ids == [["a"], ["b", "c"]]


def test_a_batch_waits_while_iterations_of_the_loop_bring_more_requests() -> None:
    bench = Bench()
    bench.send("a", "b")

    def send_later() -> None:
        bench.send("c")

    bench.clock.call_soon(send_later)
    bench.clock.turn()
    assert bench.instances[0].ids == [["a", "b", "c"]]


def test_enough_requests_are_sent_to_an_idle_instance_within_an_iteration() -> None:
    bench = Bench(BatchRule(64))
    bench.send(*map(str, range(ENOUGH_REQUESTS)), "late")
    assert bench.instances[0].ids == [[*map(str, range(ENOUGH_REQUESTS))]]
    bench.clock.turn()
    assert len(bench.instances[0].ids) == 1
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.instances[0].ids[1:] == [["late"]]


def test_a_full_batch_is_sent_within_an_iteration() -> None:
    bench = Bench(BatchRule(2), num_instances=2)
    bench.send("a", "b", "c", "d", "e")
    assert [instance.ids for instance in bench.instances] == [[["a", "b"]], [["c", "d"]]]


def test_delays_async_instances_and_calls_wait_for_the_next_iteration() -> None:
    delayed = Bench(BatchRule(64, frozenset(), 5 * MS))
    delayed.send(*map(str, range(64)))
    assert delayed.instances[0].ids == []
    concurrent = Bench(BatchRule(64))
    concurrent.instances[0].max_batches = 8
    concurrent.send(*map(str, range(64)))
    assert concurrent.instances[0].ids == []
    called = Bench(BatchRule(64))
    called.send(*map(str, range(64)), caller=object())
    assert called.instances[0].ids == []
    for bench in (delayed, concurrent, called):
        bench.clock.turn()
        assert bench.instances[0].ids == [[*map(str, range(64))]]


def test_a_batch_does_not_wait_for_ever() -> None:
    bench = Bench()
    bench.send("0", "0")

    def one_more() -> None:
        if len(bench.instances[0].ids) == 0:
            bench.send("more")
            bench.clock.call_soon(one_more)

    bench.clock.call_soon(one_more)
    bench.clock.turn()
    assert len(bench.instances[0].ids[0]) <= 8


def test_without_a_batcher_requests_go_one_by_one() -> None:
    bench = Bench(BatchRule(1))
    bench.send("a", "b")
    bench.clock.turn()
    bench.instances[0].finish()
    assert bench.instances[0].ids == [["a"], ["b"]]


def test_instances_work_side_by_side() -> None:
    bench = Bench(BatchRule(1), num_instances=2)
    bench.send("a", "b", "c")
    bench.clock.turn()
    assert [instance.ids for instance in bench.instances] == [[["a"]], [["b"]]]
    bench.instances[1].finish()
    assert bench.instances[1].ids == [["b"], ["c"]]


def test_the_queue_delay_is_kept_by_timer() -> None:
    bench = Bench(BatchRule(8, frozenset({8}), 5 * MS))
    bench.send("a")
    bench.clock.advance(4 * MS)
    bench.send("b")
    bench.clock.turn()
    assert bench.instances[0].ids == []
    bench.clock.advance(1 * MS)
    assert bench.instances[0].ids == [["a", "b"]]


def test_a_preferred_size_ends_the_delay() -> None:
    bench = Bench(BatchRule(8, frozenset({2}), 5 * MS))
    bench.send("a", "b", "c")
    bench.clock.turn()
    assert bench.instances[0].ids == [["a", "b"]]


def test_max_queue_size_is_exact_and_counts_only_waiting_requests() -> None:
    bench = Bench(BatchRule(1), default_policy=QueuePolicy(max_queue_size=2))
    bench.send("running")
    bench.clock.turn()
    bench.send("a", "b")
    with pytest.raises(NaiadError) as refused:
        bench.send("c")
    assert (refused.value.code, refused.value.message) == (
        Code.UNAVAILABLE,
        "Exceeds maximum queue size",
    )
    assert refused.value.retry_after_s
    assert bench.statistics.failures["REJECTED"] == 1
    bench.instances[0].finish()
    bench.send("d")


def test_a_timeout_fires_by_timer_while_the_instance_is_busy() -> None:
    bench = Bench(BatchRule(1), default_policy=QueuePolicy(default_timeout_us=3000))
    bench.send("running")
    bench.clock.turn()
    bench.send("late")
    bench.clock.advance(3 * MS - 1)
    assert "late" not in bench.answers
    bench.clock.advance(1)
    assert (bench.error("late").code, bench.error("late").message) == (
        Code.UNAVAILABLE,
        "Request timeout expired",
    )
    assert bench.statistics.pending_request_count == 0


@pytest.mark.parametrize(
    ("policy", "timeout_us", "expires_after_ms"),
    [
        (QueuePolicy(default_timeout_us=3000, allow_timeout_override=True), 1000, 1),
        (QueuePolicy(default_timeout_us=3000, allow_timeout_override=True), 9000, 3),
        (QueuePolicy(default_timeout_us=3000), 1000, 3),
        (QueuePolicy(allow_timeout_override=True), 2000, 2),
    ],
)
def test_a_request_may_only_shorten_its_timeout(
    policy: QueuePolicy, timeout_us: int, expires_after_ms: int
) -> None:
    bench = Bench(BatchRule(1), default_policy=policy)
    bench.send("running")
    bench.clock.turn()
    bench.send("a", timeout_us=timeout_us)
    bench.clock.advance(expires_after_ms * MS - 1)
    assert "a" not in bench.answers
    bench.clock.advance(1)
    assert "a" in bench.answers


def test_delayed_requests_go_behind_the_others_and_are_still_served() -> None:
    bench = Bench(BatchRule(1), default_policy=QueuePolicy(is_delay=True, default_timeout_us=1000))
    bench.send("running")
    bench.clock.turn()
    bench.send("old")
    bench.clock.advance(2 * MS)
    bench.send("new")
    for _ in range(3):
        bench.instances[0].finish()
    assert bench.instances[0].ids == [["running"], ["new"], ["old"]]


def test_the_lower_level_number_goes_first() -> None:
    bench = Bench(BatchRule(1), priority_levels=3, default_priority_level=2)
    bench.send("running")
    bench.clock.turn()
    bench.send("third", priority=3)
    bench.send("default")
    bench.send("unknown level", priority=9)
    bench.send("first", priority=1)
    for _ in range(5):
        bench.instances[0].finish()
    assert bench.instances[0].ids == [
        ["running"],
        ["first"],
        ["default"],
        ["unknown level"],
        ["third"],
    ]


def test_each_level_has_its_own_policy() -> None:
    bench = Bench(
        BatchRule(1),
        priority_levels=2,
        default_priority_level=1,
        priority_queue_policy={2: QueuePolicy(max_queue_size=1)},
    )
    bench.send("running")
    bench.clock.turn()
    bench.send("a", priority=2)
    bench.send("b", "c", priority=1)
    with pytest.raises(NaiadError):
        bench.send("d", priority=2)


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    bench = Bench(BatchRule(1), default_policy=QueuePolicy(max_queue_size=1))
    bench.send("running")
    bench.clock.turn()
    bench.send("gone").cancel()
    assert bench.error("gone").code is Code.CANCELLED
    assert bench.statistics.failures["CANCELED"] == 1
    bench.send("next")
    bench.instances[0].finish()
    assert bench.instances[0].ids == [["running"], ["next"]]


def test_many_cancelled_requests_leave_nothing_behind_while_the_instance_hangs() -> None:
    bench = Bench(BatchRule(1))
    bench.send("running")
    bench.clock.turn()
    for number in range(1000):
        bench.send(str(number)).cancel()
    queue = bench.scheduler._queue
    assert len(queue) == 0
    assert len(queue._levels[0].waiting) < 100


def test_preserve_ordering_holds_back_the_faster_instance() -> None:
    bench = Bench(BatchRule(1), num_instances=2, preserve_ordering=True)
    bench.send("a", "b", "c")
    bench.clock.turn()
    bench.instances[1].finish()
    assert bench.order == []
    bench.instances[0].finish()
    assert bench.order == ["a", "b"]
    bench.instances[1].finish()
    assert bench.order == ["a", "b", "c"]


def test_waiting_requests_fail_when_every_instance_crashes_in_a_loop() -> None:
    bench = Bench(BatchRule(1))
    bench.send("running")
    bench.clock.turn()
    bench.send("waiting")
    instance = bench.instances[0]
    instance.is_serving = False
    instance.observer.on_state_change(instance)
    assert "waiting" not in bench.answers
    instance.outage = "worker of 'm_0' crashes in a loop"
    instance.observer.on_state_change(instance)
    error = bench.error("waiting")
    assert error.code is Code.UNAVAILABLE
    assert error.message.endswith(instance.outage)


async def test_stop_refuses_new_requests_and_waits_for_those_in_flight() -> None:
    bench = Bench(BatchRule(1))
    bench.send("a", "b")
    bench.clock.turn()
    stopping = asyncio.create_task(bench.scheduler.stop())
    await asyncio.sleep(0)
    with pytest.raises(
        NaiadError,
        match=(
            "Server is stopping, scheduler for model has stopped accepting new inference requests"
        ),
    ):
        bench.send("c")
    bench.instances[0].finish()
    await asyncio.sleep(0)
    assert not stopping.done()
    bench.instances[0].finish()
    await stopping
    assert bench.order == ["a", "b"]


async def test_stop_does_not_wait_for_the_queue_delay() -> None:
    bench = Bench(BatchRule(8, frozenset({8}), 2**63))
    bench.send("a", "b")
    bench.clock.turn()
    assert bench.instances[0].ids == []
    stopping = asyncio.create_task(bench.scheduler.stop())
    await asyncio.sleep(0)
    bench.clock.turn()
    assert bench.instances[0].ids == [["a", "b"]]
    bench.instances[0].finish()
    await stopping
    assert bench.order == ["a", "b"]


def test_a_default_priority_without_levels_is_the_only_level() -> None:
    bench = Bench(BatchRule(1), default_priority_level=5)
    bench.send("a")
    bench.clock.turn()
    assert bench.instances[0].ids == [["a"]]


def test_an_instance_that_is_lent_is_recalled_when_a_request_waits_for_it() -> None:
    bench = Bench(may_lend=True)
    (instance,) = bench.instances
    assert instance.loan.is_allowed
    instance.loan.is_active = True
    bench.clock.turn()
    assert instance.loan.recalls == []
    bench.send("a")
    bench.clock.turn()
    assert (instance.loan.recalls, instance.ids) == ([True], [])
    instance.end_loan()
    bench.clock.turn()
    assert instance.ids == [["a"]]


def test_an_instance_that_is_lent_is_left_alone_while_another_is_free() -> None:
    bench = Bench(num_instances=2, may_lend=True)
    bench.instances[0].loan.is_active = True
    bench.send("a")
    bench.clock.turn()
    assert (bench.instances[0].loan.recalls, bench.instances[1].ids) == ([], [["a"]])
    bench.send("b")
    bench.clock.turn()
    assert bench.instances[0].loan.recalls == [True]


@pytest.mark.parametrize("options", [{}, {"may_lend": True, "preserve_ordering": True}])
def test_schedulers_that_order_or_delay_do_not_allow_loans(options: dict[str, Any]) -> None:
    assert not Bench(**options).instances[0].loan.is_allowed
    assert (
        not Bench(BatchRule(8, frozenset({8}), 5 * MS), may_lend=True).instances[0].loan.is_allowed
    )


async def test_stopping_waits_for_an_instance_that_is_lent() -> None:
    bench = Bench(may_lend=True)
    (instance,) = bench.instances
    instance.loan.is_active = True
    stopping = asyncio.ensure_future(bench.scheduler.stop())
    await asyncio.sleep(0)
    assert (instance.loan.is_allowed, instance.loan.recalls, stopping.done()) == (
        False,
        [False],
        False,
    )
    instance.end_loan()
    await stopping


async def test_an_instance_that_is_lent_can_be_removed() -> None:
    bench = Bench(num_instances=2, may_lend=True)
    instance = bench.instances[0]
    instance.loan.is_active = True
    removing = asyncio.ensure_future(bench.scheduler.remove_instance(instance))
    await asyncio.sleep(0)
    assert (instance.loan.is_allowed, instance.loan.recalls, removing.done()) == (
        False,
        [False],
        False,
    )
    instance.end_loan()
    await removing
