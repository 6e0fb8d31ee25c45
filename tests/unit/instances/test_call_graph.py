from __future__ import annotations

import pytest

from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import Code, NaiadError
from naiad.instances.call_graph import OutgoingCall
from naiad.instances.in_flight import InFlight
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.loan import Loan
from naiad.instances.observers import Observers
from naiad.instances.restart import RestartPolicy
from tests.fakes import FakeInstance


class FakeWaiter:
    def __init__(self, model_name: str, max_batches: int = 1) -> None:
        self.model_name = model_name
        self.max_batches = max_batches
        self.is_serving = True
        self.loan = Loan(
            InstancePlan("python", model_name, "1", False, 0, RestartPolicy()),
            InFlight(),
            Observers(FakeInstance()),
            ModelStatistics(model_name, 1),
            None,
            has_permit=False,
        )
        self.batches: list[tuple[list[Job], list[OutgoingCall]]] = []

    @property
    def name(self) -> str:
        return f"{self.model_name}_0"

    @property
    def may_borrow(self) -> bool:
        return False

    @property
    def is_free(self) -> bool:
        return self.is_serving and len(self.batches) < self.max_batches

    def executes(self, job: Job) -> bool:
        return any(job in jobs for jobs, _ in self.batches)

    def waits(self) -> list[list[OutgoingCall]]:
        return [calls for _, calls in self.batches]

    def run(self, job: Job | None = None) -> None:
        self.batches.append(([job] if job is not None else [], []))


class World:
    def __init__(self, **instances: int) -> None:
        self.models = {
            name: [FakeWaiter(name) for _ in range(count)] for name, count in instances.items()
        }

    def run(self, name: str, at: int = 0) -> FakeWaiter:
        waiter = self.models[name][at]
        waiter.run()
        return waiter

    def call(
        self, caller: FakeWaiter, name: str, batch: int = 0, call: OutgoingCall | None = None
    ) -> Job:
        """Raises NaiadError. The job goes to a free instance when there is one, else it
        queues."""
        if call is None:
            call = OutgoingCall(caller)
            caller.batches[batch][1].append(call)
        job = Job(InferRequest(name, []), ResponseStream())
        try:
            call.enter(job, name, self.models[name])
        except NaiadError:
            caller.batches[batch][1].remove(call)
            raise
        free = next((waiter for waiter in self.models[name] if waiter.is_free), None)
        if free is not None:
            free.run(job)
        return job


def circle(error: pytest.ExceptionInfo[NaiadError]) -> str:
    assert error.value.code is Code.INTERNAL
    return error.value.message.partition(" is a cycle")[0]


def test_a_call_to_oneself_without_another_instance_is_refused() -> None:
    world = World(a=1)
    with pytest.raises(NaiadError) as error:
        world.call(world.run("a"), "a")
    assert circle(error) == "model 'a' -> 'a'"


def test_a_call_to_oneself_with_a_free_instance_is_fine_until_there_is_none() -> None:
    world = World(a=2)
    world.call(world.run("a"), "a")
    with pytest.raises(NaiadError) as error:
        world.call(world.models["a"][1], "a")
    assert circle(error) == "model 'a' -> 'a'"


def test_a_circle_of_three_names_all_of_them() -> None:
    world = World(a=1, b=1, c=1)
    world.call(world.run("a"), "b")
    world.call(world.models["b"][0], "c")
    with pytest.raises(NaiadError) as error:
        world.call(world.models["c"][0], "a")
    assert circle(error) == "model 'c' -> 'a' -> 'b' -> 'c'"
    assert "every instance of 'a'" in error.value.message


def test_a_busy_model_that_works_is_waited_for() -> None:
    world = World(a=1, b=1)
    world.run("b")
    world.call(world.run("a"), "b")


def test_one_instance_that_works_is_enough() -> None:
    world = World(a=2)
    world.run("a", 1)
    world.call(world.run("a", 0), "a")


def test_two_requests_that_wait_for_each_other() -> None:
    world = World(a=1, b=1)
    first, second = world.run("a"), world.run("b")
    world.call(first, "b")
    with pytest.raises(NaiadError) as error:
        world.call(second, "a")
    assert circle(error) == "model 'b' -> 'a' -> 'b'"


def test_where_a_request_executes_counts_not_where_it_could_have() -> None:
    """`b` has a free instance, but the call is already on the other one."""
    world = World(a=1, b=2)
    world.call(world.run("a"), "b")
    assert world.models["b"][1].is_free
    with pytest.raises(NaiadError) as error:
        world.call(world.models["b"][0], "a")
    assert circle(error) == "model 'b' -> 'a' -> 'b'"


def test_an_instance_with_room_for_more_batches_is_not_stuck() -> None:
    world = World(a=1)
    world.models["a"][0].max_batches = 3
    for batch in range(2):
        world.run("a") if not batch else None
        world.call(world.models["a"][0], "a", batch)
    with pytest.raises(NaiadError):
        world.call(world.models["a"][0], "a", 2)


def test_a_batch_that_waits_for_nothing_frees_the_instance_in_the_end() -> None:
    world = World(a=1)
    world.models["a"][0].max_batches = 2
    world.run("a")
    world.run("a")
    world.call(world.models["a"][0], "a", 0)


def test_a_call_from_a_thread_of_a_decoupled_model_may_wait() -> None:
    """Nobody knows which request waits for it."""
    world = World(a=1)
    caller = world.run("a")
    OutgoingCall(caller).enter(Job(InferRequest("a", []), ResponseStream()), "a", world.models["a"])


def test_the_steps_of_an_ensemble_belong_to_the_call() -> None:
    world = World(a=1, b=1)
    call = OutgoingCall(world.run("a"))
    world.models["a"][0].batches[0][1].append(call)
    call.enter(Job(InferRequest("e", []), ResponseStream()), "e", [])
    first = world.call(world.models["a"][0], "b", call=call)
    first.stream.close()
    world.models["b"][0].batches.clear()
    with pytest.raises(NaiadError) as error:
        world.call(world.models["a"][0], "a", call=call)
    assert circle(error) == "model 'a' -> 'a'"


def test_an_instance_that_is_coming_back_is_waited_for() -> None:
    world = World(a=2)
    world.models["a"][1].is_serving = False
    world.call(world.run("a"), "a")
