"""An instance's way back: whole batches go to the relay of the ensemble that they belong to, all
others to their own streams."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from naiad.core.job import Job, ModelResponse
from naiad.core.response import InferResponse
from naiad.core.statistics import MAX_RESPONSES, BatchTimes, ModelStatistics
from naiad.core.tensor import Tensor
from naiad.instances.in_flight import Batch, InFlight, OpenJob
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.instances.responses import Responses
from naiad.instances.restart import RestartPolicy
from naiad.ipc.framing import BrokenLinkError
from naiad.ipc.messages import EncodedExecuted, EncodedGroup, EncodedItem, Executed, Response
from naiad.ipc.work import EncodedResponse, WorkError, WorkResponse
from tests.fakes import FakeInstance, FakeObserver, fake_job


class Relay:
    def __init__(self, *, forwards: bool) -> None:
        self.forwards = forwards
        self.seen: list[list[str]] = []

    def forward(
        self, jobs: list[Job], responses: Sequence[ModelResponse], times: BatchTimes
    ) -> bool:
        assert len(jobs) == len(responses)
        self.seen.append([job.request.id for job in jobs])
        return self.forwards


class Bench:
    def __init__(self, relay: Relay | None, *, is_decoupled: bool = False) -> None:
        self.statistics = ModelStatistics("m", 1)
        self.in_flight = InFlight()
        observer = FakeObserver()
        self.events = observer.events
        observers = Observers(FakeInstance())
        observers.attach(observer)
        channel: Any = None  # no response refers to shared memory
        plan = InstancePlan("python", "m", "1", is_decoupled, 0, RestartPolicy())
        self.responses = Responses(channel, plan, self.in_flight, observers, self.statistics)
        self.delivered: dict[str, InferResponse | None] = {}
        jobs = [self.job(str(number), relay) for number in (1, 2)]
        batch = Batch(jobs, [1, 2], 2, 0)
        self.in_flight.batches[7] = batch
        self.in_flight.jobs.update(
            {handle: OpenJob(job, batch) for handle, job in zip((1, 2), jobs, strict=True)}
        )

    def job(self, id: str, relay: Relay | None) -> Job:
        job = fake_job(id, part=SimpleNamespace(relay=relay))
        job.stream.deliver_to(lambda response, is_final: self.delivered.update({id: response}))
        return job

    def execute(self, *responses: WorkResponse | None) -> None:
        self.responses.on_executed(Executed(7, 0, 0, list(responses)))


def good() -> WorkResponse:
    return WorkResponse([Tensor("Y", "UINT8", [1], b"\1")])


def test_a_batch_that_its_relay_forwards_is_not_delivered_again() -> None:
    relay = Relay(forwards=True)
    bench = Bench(relay)
    bench.execute(good(), good())
    assert relay.seen == [["1", "2"]]
    assert bench.delivered == {}
    assert not bench.in_flight.jobs
    assert bench.statistics.success.count == 2
    assert bench.events == ["capacity", "idle"]


@pytest.mark.parametrize("relay", [None, Relay(forwards=False)])
def test_a_batch_that_no_relay_forwards_goes_to_the_streams(relay: Relay | None) -> None:
    bench = Bench(relay)
    bench.execute(good(), good())
    assert {
        id: response and [t.name for t in response.outputs]
        for id, response in bench.delivered.items()
    } == {"1": ["Y"], "2": ["Y"]}


def test_errors_and_responses_of_senders_are_not_relayed() -> None:
    relay = Relay(forwards=True)
    bench = Bench(relay)
    bench.execute(WorkResponse(error=WorkError("INTERNAL", "no")), good())
    assert relay.seen == [["2"]]
    (failed,) = bench.delivered.values()
    assert failed is not None
    assert failed.error is not None
    other = Relay(forwards=True)
    bench = Bench(other)
    bench.execute(None, None)
    assert other.seen == []
    assert len(bench.in_flight.jobs) == 2


def test_a_batch_that_the_worker_does_not_have_breaks_its_channel() -> None:
    bench = Bench(None)
    with pytest.raises(BrokenLinkError):
        bench.responses.on_executed(Executed(8, 0, 0, [good(), None]))
    assert bench.events == []
    assert len(bench.in_flight.jobs) == 2


def test_too_few_responses_to_a_batch_break_the_channel_of_its_worker() -> None:
    bench = Bench(None)
    with pytest.raises(BrokenLinkError, match="1 responses to a batch of 2 requests"):
        bench.execute(good())
    assert bench.delivered == {}
    assert len(bench.in_flight.jobs) == 2


@pytest.mark.parametrize("outputs", [msgspec.Raw(b"\x05"), msgspec.Raw(b"\x91\xa1x")])
def test_outputs_that_are_not_tensors_break_the_channel_of_their_worker(
    outputs: msgspec.Raw,
) -> None:
    bench = Bench(None, is_decoupled=True)
    item = EncodedItem(1, EncodedResponse(outputs), is_final=True)
    with pytest.raises(BrokenLinkError):
        bench.responses.on_encoded_group(EncodedGroup([item]))
    with pytest.raises(BrokenLinkError):
        bench.responses.on_encoded(EncodedExecuted(7, 0, 0, [EncodedResponse(outputs), None]))
    assert bench.delivered == {}
    assert len(bench.in_flight.jobs) == 2


def test_a_long_stream_has_a_bounded_number_of_counters() -> None:
    """They stay until the model is unloaded, and the statistics page shows all of them."""
    bench = Bench(None, is_decoupled=True)
    for _ in range(3 * MAX_RESPONSES):
        bench.responses.on_response(Response(1, None, is_final=False))
    bench.responses.on_response(Response(1, None, is_final=True))
    assert list(bench.statistics.responses) == list(range(MAX_RESPONSES))
    assert bench.statistics.success.count == 1
