"""An instance's way back: whole batches go to the relay of the ensemble that they belong to, all
others to their own streams."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics
from naiad.core.tensor import Tensor
from naiad.core.work import WorkError, WorkResponse
from naiad.instances.in_flight import Batch, InFlight, OpenRequest
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.instances.responses import Responses
from naiad.instances.restart import RestartPolicy
from naiad.ipc.framing import BrokenLinkError
from naiad.ipc.messages import Executed
from tests.fakes import FakeInstance, FakeObserver


class Relay:
    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[list[str]] = []

    def take(
        self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes
    ) -> bool:
        assert len(requests) == len(responses)
        self.seen.append([request.id for request in requests])
        return self.takes


class Bench:
    def __init__(self, relay: Relay | None) -> None:
        self.statistics = ModelStatistics("m", 1)
        self.in_flight = InFlight()
        observer = FakeObserver()
        self.events = observer.events
        observers = Observers(FakeInstance())
        observers.attach(observer)
        channel: Any = None  # no response refers to shared memory
        plan = InstancePlan("python", "m", "1", False, 0, RestartPolicy())
        self.responses = Responses(channel, plan, self.in_flight, observers, self.statistics)
        self.delivered: dict[str, InferResponse | None] = {}
        requests = [self.request(str(number), relay) for number in (1, 2)]
        batch = Batch(requests, [1, 2], 2, 0)
        self.in_flight.batches[7] = batch
        self.in_flight.requests.update(
            {
                handle: OpenRequest(request, batch)
                for handle, request in zip((1, 2), requests, strict=True)
            }
        )

    def request(self, id: str, relay: Relay | None) -> InferRequest:
        request = InferRequest("m", [], id=id)
        request.part = SimpleNamespace(relay=relay)
        request.stream = ResponseStream()
        request.stream.deliver_to(lambda response, is_final: self.delivered.update({id: response}))
        return request

    def execute(self, *responses: WorkResponse | None) -> None:
        self.responses.on_executed(Executed(7, 0, 0, list(responses)))


def good() -> WorkResponse:
    return WorkResponse([Tensor("Y", "UINT8", [1], b"\1")])


def test_a_batch_that_its_relay_takes_is_answered_by_nobody_else() -> None:
    relay = Relay(takes=True)
    bench = Bench(relay)
    bench.execute(good(), good())
    assert relay.seen == [["1", "2"]]
    assert bench.delivered == {}
    assert not bench.in_flight.requests
    assert bench.statistics.success.count == 2
    assert bench.events == ["capacity", "idle"]


@pytest.mark.parametrize("relay", [None, Relay(takes=False)])
def test_what_no_relay_takes_goes_to_the_streams(relay: Relay | None) -> None:
    bench = Bench(relay)
    bench.execute(good(), good())
    assert {
        id: response and [t.name for t in response.outputs]
        for id, response in bench.delivered.items()
    } == {"1": ["Y"], "2": ["Y"]}


def test_errors_and_what_a_sender_answers_do_not_come_to_the_relay() -> None:
    relay = Relay(takes=True)
    bench = Bench(relay)
    bench.execute(WorkResponse(error=WorkError("INTERNAL", "no")), good())
    assert relay.seen == [["2"]]
    (failed,) = bench.delivered.values()
    assert failed is not None
    assert failed.error is not None
    other = Relay(takes=True)
    bench = Bench(other)
    bench.execute(None, None)
    assert other.seen == []
    assert len(bench.in_flight.requests) == 2


def test_a_batch_that_the_worker_does_not_have_breaks_its_channel() -> None:
    bench = Bench(None)
    with pytest.raises(BrokenLinkError):
        bench.responses.on_executed(Executed(8, 0, 0, [good(), None]))
    assert bench.events == []
    assert len(bench.in_flight.requests) == 2


def test_too_few_responses_to_a_batch_break_the_channel_of_its_worker() -> None:
    bench = Bench(None)
    with pytest.raises(BrokenLinkError, match="1 responses to a batch of 2 requests"):
        bench.execute(good())
    assert bench.delivered == {}
    assert len(bench.in_flight.requests) == 2
