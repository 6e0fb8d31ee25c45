"""Batches that go from step to step of an ensemble as one: by hand-driven instances, and always
beside the same the normal way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from naiad.core.bundle import Queued
from naiad.core.job import Job
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, not_found
from naiad.ipc.work import WorkError, WorkResponse
from naiad.repository.request_check import RequestCheck
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.ensemble.ensemble import EnsembleScheduler
from naiad.scheduling.ensemble.plan import EnsemblePlan, Step
from naiad.scheduling.queue import QueuePolicy
from tests.fakes import FakeClock, FakeInstance

Respond = Callable[[Job], WorkResponse]


def plus_one(job: Job) -> WorkResponse:
    (tensor,) = job.request.inputs
    return WorkResponse(
        [Tensor("y", tensor.datatype, tensor.shape, bytes(value + 1 for value in tensor.data))]
    )


class Worker(FakeInstance):
    """Responds to whole batches, and counts them, in the order of naiad.instances.responses."""

    def __init__(self, clock: FakeClock, statistics: ModelStatistics) -> None:
        super().__init__()
        self.clock = clock
        self.statistics = statistics
        self.starts_ns: list[int] = []
        self.cancelled: list[str] = []

    def execute(self, jobs: Sequence[Queued], on_executed: Any = None) -> None:
        super().execute(jobs, on_executed)
        self.starts_ns.append(self.clock.now_ns())
        for job in self.batches[-1]:
            job.stream.on_cancel(self.cancelled.append, job.request.id)

    def reply(self, respond: Respond = plus_one) -> None:
        jobs, start_ns, now_ns = self.running.pop(0), self.starts_ns.pop(0), self.clock.now_ns()
        self.observer.on_capacity(self)
        times = BatchTimes(start_ns, start_ns + 1, now_ns - 2, now_ns)
        self.statistics.record_execution(sum(job.batch_size for job in jobs), times)
        good: list[tuple[Job, WorkResponse]] = []
        for job in jobs:
            response = respond(job)
            if response.error is None:
                good.append((job, response))
            else:
                self.statistics.record_failure(job.start_ns, now_ns, "BACKEND")
                job.stream.fail(NaiadError(Code[response.error.code], response.error.message))
        if good:
            self.deliver([job for job, _ in good], [response for _, response in good], times)
        self.observer.on_idle(self)

    def deliver(self, jobs: list[Job], responses: list[WorkResponse], times: BatchTimes) -> None:
        self.statistics.record_compute(len(jobs), times)
        self.statistics.record_responses(jobs, times.compute_start_ns, times.compute_end_ns)
        part = jobs[0].part
        if (
            part is not None
            and part.relay is not None
            and part.relay.forward(jobs, responses, times)
        ):
            return
        for job, response in zip(jobs, responses, strict=True):
            job.stream.put(
                InferResponse(
                    "m", "1", job.request.id, response.outputs, response.parameters, None, times
                ),
                True,
            )


class Model:
    def __init__(
        self,
        clock: FakeClock,
        name: str,
        max_batch_size: int = 8,
        datatype: str = "UINT8",
        **options: Any,
    ) -> None:
        dims = TensorSpec("x", datatype, [-1], [-1, -1])
        self.statistics = ModelStatistics(name, 1)
        self.spec = ModelSpec(name, 1, [1], "python", max_batch_size, {"x": dims}, {"y": dims})
        self.check: Callable[[InferRequest], None] = RequestCheck(self.spec).check
        self.worker = Worker(clock, self.statistics)
        rule = BatchRule(max_batch_size, equal_inputs=frozenset({"x"}))
        self.scheduler: Any = DynamicScheduler(
            [self.worker], options.pop("rule", rule), clock, self.statistics, **options
        )


class Chain:
    """IN -> a -> b -> c -> OUT. `is_relayed` False: the same without relays."""

    def __init__(self, *, is_relayed: bool = True) -> None:
        self.clock = FakeClock()
        self.models = {name: Model(self.clock, name) for name in "abc"}
        steps = [
            Step("a", "", {"x": "IN"}, {"y": "t1"}),
            Step("b", "", {"x": "t1"}, {"y": "t2"}),
            Step("c", "", {"x": "t2"}, {"y": "OUT"}),
        ]
        plan = EnsemblePlan("e", "1", steps, ["OUT"], False, 4)
        self.statistics = ModelStatistics("e", 1)
        self.scheduler = EnsembleScheduler(
            plan, self.infer, self.clock, self.statistics, self.find if is_relayed else None
        )
        self.num_infers = 0
        self.answers: dict[str, InferResponse | None] = {}

    def find(self, name: str, version: str) -> Model:
        if name not in self.models:
            raise not_found(f"no model '{name}'")
        return self.models[name]

    def infer(self, job: Job) -> ResponseStream:
        self.num_infers += 1
        job.start_ns = self.clock.now_ns()
        model = self.find(job.request.model_name, job.request.model_version)
        model.check(job.request)
        job.batch_size = job.request.batch_size
        stream: ResponseStream = model.scheduler.enqueue(job)
        return stream

    def send(self, id: str, data: bytes = b"\1\2", **fields: Any) -> ResponseStream:
        request = InferRequest(
            "e",
            [Tensor("IN", fields.pop("datatype", "UINT8"), [1, len(data)], data)],
            id=id,
            **fields,
        )
        stream = self.scheduler.enqueue(Job(request, ResponseStream(), self.clock.now_ns()))

        def take(response: InferResponse | None, is_final: bool) -> None:
            assert is_final
            assert id not in self.answers
            self.answers[id] = response

        stream.deliver_to(take)
        return stream

    def worker(self, name: str) -> Worker:
        return self.models[name].worker

    def running(self, name: str) -> list[list[str]]:
        return [[job.request.id for job in batch] for batch in self.worker(name).running]

    def turn(self) -> None:
        for _ in range(12):
            self.clock.turn()

    def reply(self, name: str, respond: Respond = plus_one) -> None:
        """And whatever leaves by itself afterwards has left."""
        self.clock.advance(1000)
        self.worker(name).reply(respond)
        self.turn()

    def start(self, *ids: str) -> None:
        for id in ids:
            self.send(id)
        self.turn()

    def data(self, id: str) -> bytes:
        answer = self.answers[id]
        assert answer is not None
        assert answer.error is None
        ((name, data),) = [(tensor.name, bytes(tensor.data)) for tensor in answer.outputs]
        assert name == "OUT"
        return data

    def error(self, id: str) -> str:
        answer = self.answers[id]
        assert answer is not None
        assert answer.error is not None
        return answer.error.message


def counted(statistics: ModelStatistics) -> dict[str, Any]:
    """All that anybody can see of them."""
    found = {
        name: value
        for name, value in vars(statistics).items()
        if not name.startswith("_") and name not in ("last_inference_ms", "created_at_s")
    }
    for name in ("request_histogram", "queue_histogram", "first_response_histogram_ms"):
        found[name] = getattr(statistics, name)
    return {
        name: (value.counts, value.total) if hasattr(value, "counts") else value
        for name, value in found.items()
    }


def test_a_batch_goes_from_step_to_step_as_one() -> None:
    chain = Chain()
    chain.start("1", "2", "3")
    assert chain.running("a") == [["1", "2", "3"]]
    chain.worker("a").reply()
    assert chain.running("b") == [["1", "2", "3"]]  # before the loop has turned
    batch = chain.worker("b").running[0]
    assert [(t.name, bytes(t.data)) for t in batch[0].request.inputs] == [("x", b"\2\3")]
    assert (batch[0].request.model_name, batch[0].request.requested_outputs) == ("b", ["y"])
    assert batch[0].batch_size == 1
    chain.worker("b").reply()
    chain.worker("c").reply()
    assert [chain.data(id) for id in "123"] == [b"\4\5"] * 3
    assert chain.num_infers == 3
    assert chain.scheduler.inflight() == 0


def test_a_request_keeps_its_fields_through_all_steps() -> None:
    chain = Chain()
    chain.send(
        "1",
        priority=2,
        timeout_us=7,
        parameters={"k": 1},
        sequence_id=5,
        sequence_start=True,
        deadline_ns=9,
    )
    chain.turn()
    for name in "abc":
        request = chain.worker(name).running[0][0].request
        assert (request.priority, request.timeout_us, request.parameters, request.deadline_ns) == (
            2,
            7,
            {"k": 1},
            9,
        )
        assert (request.sequence_id, request.sequence_start, request.sequence_end) == (
            5,
            True,
            False,
        )
        chain.reply(name)
    answer = chain.answers["1"]
    assert answer is not None
    assert (answer.model_name, answer.model_version, answer.id) == ("e", "1", "1")
    assert answer.parameters == {"sequence_id": 5, "sequence_start": True, "sequence_end": False}


def play(chain: Chain) -> None:
    """Batches of several sizes, one of which meets a busy model, errors, and a cancellation."""
    chain.start("1", "2", "3")
    chain.reply("a")
    chain.start("4", "5")
    chain.reply("a")  # b is busy
    chain.reply("b")
    chain.reply("c")
    chain.reply("b")
    chain.reply(
        "c",
        lambda job: (
            WorkResponse(error=WorkError("INTERNAL", "no"))
            if job.request.id == "4"
            else plus_one(job)
        ),
    )
    streams = [chain.send(id, b"\1\2\3") for id in "67"]
    chain.turn()
    chain.reply("a")
    streams[0].cancel()
    for name in "bc":
        chain.reply(name)


def test_relayed_requests_are_counted_like_others() -> None:
    relayed, normal = Chain(), Chain(is_relayed=False)
    for chain in (relayed, normal):
        play(chain)
    assert relayed.num_infers < normal.num_infers
    assert sorted(relayed.answers) == sorted(normal.answers) == list("1234567")
    for id in "12357":
        assert relayed.data(id) == normal.data(id)
    for id in "46":
        assert relayed.error(id) == normal.error(id)
    for name in "abc":
        assert counted(relayed.models[name].statistics) == counted(normal.models[name].statistics)
    assert counted(relayed.statistics) == counted(normal.statistics)
    assert relayed.statistics.success.count == 5
    assert relayed.statistics.fail.count == 2


def test_requests_that_joined_on_the_way_are_charged_their_own_steps() -> None:
    results = []
    for chain in (Chain(), Chain(is_relayed=False)):
        chain.start("1")
        chain.reply("a")
        chain.clock.advance(5000)
        chain.start("2")
        chain.reply("a")
        chain.start("3")
        chain.clock.advance(3000)
        chain.reply("a")
        chain.reply("b")
        chain.reply("b")  # 2 and 3 together
        chain.reply("c")
        chain.reply("c")
        assert sorted(chain.answers) == list("123")
        results.append(counted(chain.statistics))
    assert results[0] == results[1]
    assert results[0]["batch"][1].compute_infer.count == 3


def test_a_busy_model_queues_the_batch() -> None:
    chain = Chain()
    chain.start("1", "2")
    chain.reply("a")
    chain.start("3", "4")
    chain.reply("a")
    assert chain.running("b") == [["1", "2"]]
    assert chain.models["b"].statistics.pending_request_count == 2
    chain.reply("b")
    assert chain.running("b") == [["3", "4"]]
    assert chain.models["b"].statistics.pending_request_count == 0
    assert chain.num_infers == 4


def test_a_relayed_request_can_be_cancelled_in_the_queue_of_a_busy_model() -> None:
    chain = Chain()
    chain.start("1")
    chain.reply("a")
    streams = [chain.send(id) for id in "23"]
    chain.turn()
    chain.reply("a")
    streams[0].cancel()
    assert chain.error("2") == "in ensemble 'e', request was cancelled"
    assert chain.models["b"].statistics.pending_request_count == 1
    chain.reply("b")
    assert chain.running("b") == [["3"]]


def test_time_outs_hold_in_the_queue_of_a_busy_model() -> None:
    chain = Chain()
    chain.models["b"] = Model(chain.clock, "b", default_policy=QueuePolicy(default_timeout_us=50))
    chain.start("1")
    chain.reply("a")
    chain.start("2")
    chain.reply("a")
    chain.clock.advance(60_000)
    assert chain.error("2") == "in ensemble 'e', Request timeout expired"


def test_requests_that_wait_already_go_before_a_relayed_batch() -> None:
    chain = Chain()
    chain.models["b"].worker.is_serving = False
    chain.start("1")
    chain.reply("a")
    chain.models["b"].worker.is_serving = True
    chain.start("2")
    chain.reply("a")
    assert chain.running("b") == [["1", "2"]]


@pytest.mark.parametrize(
    ("options", "batches", "is_relayed"),
    [
        ({"max_batch_size": 2}, [["1", "2"]], True),
        ({"rule": BatchRule(8, frozenset({2}))}, [["1", "2"]], False),
        ({"rule": BatchRule(8, max_queue_delay_ns=10**9)}, [], False),
        ({"rule": BatchRule(1)}, [["1"]], True),
        ({"preserve_ordering": True}, [["1", "2", "3"]], False),
    ],
)
def test_where_a_model_batches_in_its_own_way_it_still_does(
    options: dict[str, Any], batches: list[list[str]], is_relayed: bool
) -> None:
    chain = Chain()
    chain.models["b"] = Model(chain.clock, "b", **options)
    chain.start("1", "2", "3")
    chain.reply("a")
    assert chain.running("b") == batches
    assert chain.num_infers == (3 if is_relayed else 6)


def test_a_queue_that_is_too_short_refuses_as_ever() -> None:
    chain = Chain()
    chain.models["b"] = Model(chain.clock, "b", default_policy=QueuePolicy(max_queue_size=2))
    chain.start("1", "2", "3")
    chain.reply("a")
    assert chain.error("3") == "in ensemble 'e', Exceeds maximum queue size"
    assert chain.running("b") == [["1", "2"]]


def test_responses_with_different_signatures_are_not_relayed() -> None:
    chain = Chain()
    chain.start("1", "2")
    chain.reply(
        "a",
        lambda job: WorkResponse(
            [Tensor("y", "UINT8", [1, int(job.request.id)], bytes(int(job.request.id)))]
        ),
    )
    assert chain.num_infers == 4
    assert chain.running("b") == [["1"]]
    chain.reply("b")
    assert chain.running("b") == [["2"]]


def test_a_signature_that_the_next_model_refuses_fails_with_its_message() -> None:
    chain = Chain()
    chain.start("1", "2")
    chain.reply("a", lambda job: WorkResponse([Tensor("y", "FP32", [1, 1], bytes(4))]))
    assert (
        chain.error("1")
        == "in ensemble 'e', [request id: 1] inference input 'x' data-type is 'FP32', but "
        "model 'b' expects 'UINT8'"
    )
    assert chain.error("2").startswith("in ensemble 'e', [request id: 2]")
    chain.start("3")
    chain.reply("a", lambda job: WorkResponse([]))
    assert "expected 1 inputs but got 0" in chain.error("3")


def test_every_string_is_looked_at() -> None:
    chain = Chain()
    chain.models = {name: Model(chain.clock, name, datatype="BYTES") for name in "abc"}
    for id, data in (("1", b"\1\0\0\0a"), ("2", b"\1\0\0\0b")):
        request = InferRequest("e", [Tensor("IN", "BYTES", [1, 1], data)], id=id)
        chain.scheduler.enqueue(Job(request, ResponseStream())).deliver_to(
            lambda response, is_final, id=id: chain.answers.update({id: response})  # type: ignore[misc]
        )
    chain.turn()
    bad = [Tensor("y", "BYTES", [1, 1], b"\1\0\0\0c"), Tensor("y", "BYTES", [1, 1], b"\2\0\0\0c")]
    chain.reply("a", lambda job: WorkResponse([bad[int(job.request.id) - 1]]))
    assert chain.running("b") == [["1"]]
    assert "incomplete string data" in chain.error("2")


def test_parameters_of_a_step_mark_the_sequence_of_the_next() -> None:
    chain = Chain()
    chain.start("1")
    chain.reply(
        "a",
        lambda job: WorkResponse(
            plus_one(job).outputs, parameters={"sequence_id": 9, "sequence_end": True}
        ),
    )
    request = chain.worker("b").running[0][0].request
    assert (request.sequence_id, request.sequence_end) == (9, True)
    chain.reply("b")
    request = chain.worker("c").running[0][0].request
    assert (request.sequence_id, request.sequence_end) == (0, False)
    chain.reply("c", lambda job: WorkResponse(plus_one(job).outputs, parameters={"note": "x"}))
    answer = chain.answers["1"]
    assert answer is not None
    assert answer.parameters == {
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "note": "x",
    }


def test_a_cancellation_reaches_the_model_that_has_the_request_now() -> None:
    chain = Chain()
    streams = [chain.send(id) for id in "12"]
    chain.turn()
    chain.reply("a")
    streams[0].cancel()
    assert (chain.worker("a").cancelled, chain.worker("b").cancelled) == ([], ["1"])
    assert chain.error("1") == "in ensemble 'e', request was cancelled"
    chain.reply("b")
    assert chain.running("c") == [["2"]]
    chain.reply("c")
    assert chain.data("2") == b"\4\5"
    assert chain.scheduler.inflight() == 0


def test_a_worker_that_ends_fails_the_batch_it_was_handed() -> None:
    chain = Chain()
    chain.start("1", "2")
    chain.reply("a")
    for job in chain.worker("b").running.pop():
        job.stream.fail(NaiadError(Code.INTERNAL, "its worker process ended"))
    assert chain.error("1") == chain.error("2") == "in ensemble 'e', its worker process ended"
    assert chain.statistics.fail.count == 2


def test_a_model_that_is_gone_or_was_replaced() -> None:
    chain = Chain()
    chain.start("1")
    for name in "abc":
        chain.reply(name)
    new = chain.models["b"] = Model(chain.clock, "b", datatype="FP32")
    chain.start("2")
    chain.reply("a")
    assert "expects 'FP32'" in chain.error("2")
    assert not new.worker.batches
    del chain.models["b"]
    chain.start("3")
    chain.reply("a")
    assert chain.error("3") == "in ensemble 'e', no model 'b'"


def test_requests_of_clients_in_the_same_batch_get_their_responses() -> None:
    chain = Chain()
    answers: list[InferResponse | None] = []
    for position in (0, 1):
        own = Job(
            InferRequest("a", [Tensor("x", "UINT8", [1, 2], b"\1\2")], id="own"), ResponseStream()
        )
        if position == 0:
            chain.infer(own).deliver_to(lambda response, is_final: answers.append(response))
        chain.start(str(position))
        if position == 1:
            chain.worker("a").running[0].append(own)
            own.stream.deliver_to(lambda response, is_final: answers.append(response))
        chain.reply("a")
        assert chain.running("b") == [[str(position)]]
        chain.reply("b")
        chain.reply("c")
    assert len(answers) == 2


def test_a_step_of_two_outputs_in_another_order_feeds_the_right_inputs() -> None:
    clock = FakeClock()
    two = {name: TensorSpec(name, "UINT8", [2], [-1, 2]) for name in ("l", "r")}
    first, second = Model(clock, "a"), Model(clock, "b")
    second.check = RequestCheck(ModelSpec("b", 1, [1], "python", 8, two, {"y": two["l"]})).check
    chain = Chain()
    chain.clock, chain.models = clock, {"a": first, "b": second}
    steps = [
        Step("a", "", {"x": "IN"}, {"p": "t1", "q": "t2", "unread": "t3"}),
        Step("b", "", {"l": "t2", "r": "t1"}, {"y": "OUT"}),
    ]
    chain.scheduler = EnsembleScheduler(
        EnsemblePlan("e", "1", steps, ["OUT"], False, 4),
        chain.infer,
        clock,
        chain.statistics,
        chain.find,
    )
    first.check = lambda request: None
    chain.start("1", "2")
    tensors = {"p": b"\1\1", "unread": b"\7\7", "q": b"\2\2"}
    chain.reply(
        "a",
        lambda job: WorkResponse(
            [Tensor(name, "UINT8", [1, 2], data) for name, data in tensors.items()]
        ),
    )
    assert chain.num_infers == 2
    assert [
        [(t.name, bytes(t.data)) for t in job.request.inputs] for job in second.worker.running[0]
    ] == [[("l", b"\2\2"), ("r", b"\1\1")]] * 2
    chain.reply("b", lambda job: WorkResponse([Tensor("y", "UINT8", [1, 2], b"\3\3")]))
    assert chain.data("2") == b"\3\3"


def test_under_load_other_processes_go_first_while_that_brings_requests() -> None:
    chain = Chain()
    chain.start("1", "2")
    assert chain.clock.num_yields == 0  # nobody knows of a load yet
    for name in "abc":
        chain.reply(name)
    late = iter("56")
    chain.clock.on_yield = lambda: [chain.send(id) for id in next(late, "")].clear()
    chain.start("3", "4")
    assert chain.running("a") == [["3", "4", "5", "6"]]
    assert chain.clock.num_yields == 4  # two of them in vain


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_full_convoy_and_a_lone_request_do_not_wait_for_others(is_alone: bool) -> None:
    chain = Chain()
    chain.start("1", *([] if is_alone else ["2"]))
    for name in "abc":
        chain.reply(name)
    chain.start(*(["3"] if is_alone else "abcdefgh"))
    assert len(chain.running("a")) == 1
    assert chain.clock.num_yields == 0


def test_requests_of_clients_do_not_wait_for_others() -> None:
    chain = Chain()
    for _ in range(2):
        for _ in range(3):
            chain.infer(
                Job(InferRequest("a", [Tensor("x", "UINT8", [1, 2], b"\1\2")]), ResponseStream())
            )
        chain.turn()
        chain.reply("a")
    assert chain.clock.num_yields == 0
    assert len(chain.worker("a").batches) == 2


async def test_stopping_waits_for_relayed_requests() -> None:
    chain = Chain()
    chain.start("1")
    chain.reply("a")
    stopping = asyncio.create_task(chain.scheduler.stop())
    await asyncio.sleep(0)
    chain.reply("b")
    await asyncio.sleep(0)
    assert not stopping.done()
    chain.reply("c")
    await stopping
    assert chain.scheduler.inflight() == 0


def test_nothing_is_left_to_the_garbage_collector() -> None:
    # Other threads may leave something of theirs meanwhile, but not each time.
    assert min(garbage_of_two_requests() for _ in range(5)) == 0


def garbage_of_two_requests() -> int:
    chain = Chain()
    chain.start("0", "1")
    for name in "abc":
        chain.reply(name)
    gc.collect()
    gc.disable()
    try:
        chain.start("2", "3")
        for name in "abc":
            chain.reply(name)
            chain.worker(name).batches.clear()
        assert chain.data("3") == b"\4\5"
        return gc.collect()
    finally:
        gc.enable()


def test_a_model_that_sees_the_api_key_is_not_relayed_to() -> None:
    """Each request to it gets parameters of its own."""
    chain = Chain()
    model = chain.models["b"]
    model.spec = msgspec.structs.replace(model.spec, shows_api_key=True)
    chain.start("1", "2")
    chain.reply("a")
    assert chain.num_infers == 4
    chain.reply("b")
    chain.reply("c")
    assert [chain.data(id) for id in "12"] == [b"\4\5"] * 2
