from __future__ import annotations

import pytest

from naiad.errors import Code, NaiadError
from naiad.pb.model_config_pb2 import ModelInstanceGroup
from naiad.scheduling.rate_limiter import (
    EVERY_DEVICE,
    GLOBAL,
    Needs,
    Permit,
    RateLimiter,
    read_needs,
)
from tests.fakes import FakeClock


class Runner:
    """An instance with batches to execute: it asks when it may, and runs when it is allowed to."""

    def __init__(self, name: str, permit: Permit, log: list[str]) -> None:
        self.name = name
        self.permit = permit
        self.log = log
        self.left = 0
        self.running = 0
        permit.attach(self)

    def want(self, count: int = 1) -> None:
        self.left += count
        self.try_to_run()

    def on_permit(self) -> None:
        self.try_to_run()

    def try_to_run(self) -> None:
        if self.left and not self.running and self.permit.may_run():
            self.left -= 1
            self.running += 1
            self.permit.acquire()
            self.log.append(self.name)

    def finish(self) -> None:
        self.running -= 1
        self.permit.release()
        self.try_to_run()


class Bench:
    def __init__(self, available: dict[tuple[str, int], int] | None = None) -> None:
        self.clock = FakeClock()
        self.limiter = RateLimiter(self.clock, available)
        self.log: list[str] = []

    def add(self, name: str, priority: int = 1, **resources: int) -> Runner:
        needs = Needs({(resource, 0): count for resource, count in resources.items()}, priority)
        return Runner(name, self.limiter.add(needs), self.log)


def test_as_many_as_the_most_demanding_one_needs_when_nothing_is_given() -> None:
    bench = Bench()
    a, b = bench.add("a", R=4), bench.add("b", R=3)
    a.want()
    b.want()
    assert bench.log == ["a"]
    a.finish()
    bench.clock.turn()
    assert bench.log == ["a", "b"]


def test_the_available_resources_limit_what_runs_in_parallel() -> None:
    bench = Bench({("R", EVERY_DEVICE): 8})
    runners = [bench.add(name, R=4) for name in "abc"]
    for runner in runners:
        runner.want()
    assert bench.log == ["a", "b"]
    runners[1].finish()
    bench.clock.turn()
    assert bench.log == ["a", "b", "c"]


def test_who_needs_other_resources_is_not_held_up() -> None:
    bench = Bench()
    a, b, c = bench.add("a", R=4), bench.add("b", R=4), bench.add("c", S=1)
    for runner in (a, b, c):
        runner.want()
    assert bench.log == ["a", "c"]


def test_executions_times_priority_decide_who_is_next() -> None:
    bench = Bench()
    holder, often, seldom = (
        bench.add("holder", R=1),
        bench.add("often", 1, R=1),
        bench.add("seldom", 3, R=1),
    )
    holder.want()
    often.want(6)
    seldom.want(6)
    bench.log.clear()
    holder.finish()
    bench.clock.turn()
    for _ in range(7):
        (often if often.running else seldom).finish()
        bench.clock.turn()
    assert bench.log.count("often") == 6
    assert bench.log[:8] == [
        "often",
        "seldom",
        "often",
        "often",
        "often",
        "seldom",
        "often",
        "often",
    ]


def test_an_instance_that_needs_much_is_not_overtaken_for_ever() -> None:
    bench = Bench({("R", EVERY_DEVICE): 4})
    small = [bench.add(f"small {n}", 2, R=2) for n in range(2)]
    for runner in small:
        runner.want(5)
    large = bench.add("large", R=4)
    large.want()
    bench.log.clear()
    small[0].finish()
    bench.clock.turn()
    assert bench.log == []
    small[1].finish()
    bench.clock.turn()
    assert bench.log == ["large"]
    large.finish()
    bench.clock.turn()
    assert bench.log == ["large", "small 0", "small 1"]


def test_one_that_waits_behind_a_greater_need_does_not_ask_again_and_again() -> None:
    """A scheduler that merges requests asks in a later turn of the loop, not while it is offered a
    place."""
    bench = Bench({("R", EVERY_DEVICE): 4})
    holder, small, large = (
        bench.add("holder", R=2),
        bench.add("small", 9, R=2),
        bench.add("large", R=4),
    )
    small.permit.num_executions = 1

    class LateAsker:
        num_asked = 0

        def on_permit(self) -> None:
            self.num_asked += 1
            assert self.num_asked < 10, "asks for ever"
            bench.clock.call_soon(small.try_to_run)

    asker = LateAsker()
    small.permit.attach(asker)
    holder.want()
    large.want()
    small.want()
    bench.clock.turn()
    assert bench.log == ["holder"]
    assert asker.num_asked == 0
    holder.finish()
    bench.clock.turn()
    large.finish()
    bench.clock.turn()
    assert bench.log == ["holder", "large", "small"]
    assert asker.num_asked == 1


def test_an_instance_with_nothing_left_to_execute_blocks_nobody() -> None:
    bench = Bench()
    holder, gone, other = (
        bench.add("holder", R=1),
        bench.add("gone", 1, R=1),
        bench.add("other", 5, R=1),
    )
    other.permit.num_executions = 3
    holder.want()
    gone.want()
    other.want()
    gone.left = 0
    holder.finish()
    bench.clock.turn()
    assert bench.log == ["holder", "other"]


def test_an_instance_that_is_removed_releases_its_resources() -> None:
    bench = Bench()
    a, b = bench.add("a", R=1), bench.add("b", R=1)
    a.want()
    b.want()
    a.permit.close()
    bench.clock.turn()
    assert bench.log == ["a", "b"]
    a.permit.close()


def test_several_batches_of_one_instance_each_hold_the_resources() -> None:
    bench = Bench({("R", EVERY_DEVICE): 2})
    permit = bench.limiter.add(Needs({("R", 0): 1}))
    permit.acquire()
    assert permit.may_run()
    permit.acquire()
    assert not permit.may_run()
    permit.release()
    permit.release()
    assert permit.may_run()


def test_devices_have_their_own_and_a_global_resource_is_shared() -> None:
    bench = Bench({("R", 0): 1, ("R", 1): 2, ("G", EVERY_DEVICE): 1})
    first = bench.limiter.add(Needs({("R", 0): 1}))
    second = bench.limiter.add(Needs({("R", 1): 2}))
    first.acquire()
    assert second.may_run()
    shared = [bench.limiter.add(Needs({("G", GLOBAL): 1})) for _ in range(2)]
    shared[0].acquire()
    assert not shared[1].may_run()


@pytest.mark.parametrize(
    ("available", "needs", "words"),
    [
        (
            {("R", EVERY_DEVICE): 2},
            {("R", 0): 4},
            'Resource count for "R" is limited to 2 which will prevent scheduling of one or more '
            "model instances, "
            "the minimum required count is 4",
        ),
        (
            {("S", EVERY_DEVICE): 2},
            {("R", 0): 4},
            'Resource count for "R" is limited to 0 which will prevent scheduling of one or more '
            "model instances, "
            "the minimum required count is 4",
        ),
        (
            None,
            {("K", GLOBAL): 1},
            'Resource "K" is present as both global and device-specific resource in the model '
            "configuration.",
        ),
    ],
)
def test_an_instance_that_could_never_run_is_refused_with_tritons_message(
    available: dict[tuple[str, int], int] | None, needs: dict[tuple[str, int], int], words: str
) -> None:
    limiter = RateLimiter(FakeClock(), available)
    if available is None:
        limiter.add(Needs({("K", 0): 1}))
    with pytest.raises(NaiadError) as caught:
        limiter.add(Needs(needs))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, words)


def test_needs_are_read_from_the_config() -> None:
    group = ModelInstanceGroup()
    group.rate_limiter.priority = 3
    group.rate_limiter.resources.add(name="R", count=2)
    shared = group.rate_limiter.resources.add(name="G", count=1)
    setattr(shared, "global", True)
    assert read_needs(group, 7) == Needs({("R", 7): 2, ("G", GLOBAL): 1}, 3)
    assert read_needs(ModelInstanceGroup(), 0) == Needs({}, 1)
