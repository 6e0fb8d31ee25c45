from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.sequence.controls import FlagControl, SequenceControls
from naiad.scheduling.sequence.implicit_state import ImplicitState, StateTensor
from naiad.scheduling.sequence.lane import DirectRule
from naiad.scheduling.sequence.sequence import SequencePlan, SequenceScheduler
from tests.fakes import FakeClock, FakeInstance, fake_job

MS = 1_000_000
IDLE_NS = 1000 * MS


def flag(name: str) -> FlagControl:
    return FlagControl(name, "BOOL", b"\0", b"\1")


ALL_CONTROLS = SequenceControls(
    flag("START"), flag("READY"), flag("END"), ("CORRID", "UINT64"), [1, 1]
)
NO_CONTROLS = SequenceControls(None, None, None, None, [1, 1])
NO_STATE = ImplicitState([], frozenset())
BROKEN = (
    Code.UNAVAILABLE,
    "a request of this sequence was refused or lost; start the sequence again",
)


class Bench:
    """A scheduler, its instances and its clock, and what came out."""

    def __init__(
        self,
        slots: int = 4,
        num_instances: int = 1,
        *,
        direct: DirectRule | None = None,
        rule: BatchRule | None = None,
        **plan: Any,
    ) -> None:
        self.clock = FakeClock()
        self.instances = [FakeInstance() for _ in range(num_instances)]
        self.statistics = ModelStatistics("m", 1)
        plan.setdefault("controls", NO_CONTROLS)
        plan.setdefault("state", NO_STATE)
        self.scheduler = SequenceScheduler(
            self.instances,
            SequencePlan(
                "m",
                direct,
                slots,
                IDLE_NS,
                rule or BatchRule(slots, frozenset({slots})),
                outputs=["OUTPUT0"],
                **plan,
            ),
            self.clock,
            self.statistics,
        )
        self.answers: dict[str, InferResponse] = {}
        self.all: list[tuple[str, bool]] = []

    def send(
        self, id: str, sequence: int | str, start: bool = False, end: bool = False, **fields: Any
    ) -> ResponseStream:
        job = fake_job(id, sequence_id=sequence, sequence_start=start, sequence_end=end, **fields)
        stream = self.scheduler.enqueue(job)

        def take(response: InferResponse | None, is_final: bool) -> None:
            self.all.append((id, is_final))
            if response is not None:
                self.answers[id] = response

        stream.deliver_to(take)
        return stream

    def run(
        self, id: str, sequence: int | str, start: bool = False, end: bool = False, **fields: Any
    ) -> None:
        """Sends it and has it executed at once."""
        self.send(id, sequence, start, end, **fields)
        self.clock.turn()
        for instance in self.instances:
            while instance.running:
                instance.finish()
        self.clock.turn()

    def ids(self, at: int = 0) -> list[list[str]]:
        """Batches of an instance; an empty id is a null request."""
        return self.instances[at].ids

    def error(self, id: str) -> NaiadError:
        error = self.answers[id].error
        assert error is not None
        return error


def direct(
    slots: int = 4, num_instances: int = 1, delay_ms: int = 0, utilization: float = 0.0, **plan: Any
) -> Bench:
    return Bench(slots, num_instances, direct=DirectRule(delay_ms * MS, utilization), **plan)


def controls_of(job: Job) -> dict[str, bytes]:
    return {
        tensor.name: bytes(tensor.data) for tensor in job.request.inputs if tensor.name != "INPUT0"
    }


# Where a sequence goes.


def test_direct_keeps_every_sequence_in_its_slot_and_fills_the_slots_before_it() -> None:
    bench = direct()
    bench.run("a", 1, start=True)
    bench.run("b", 2, start=True)
    bench.run("c", 3, start=True)
    bench.run("b2", 2)
    bench.run("a2", 1)
    assert bench.ids() == [["a"], ["", "b"], ["", "", "c"], ["", "b2"], ["a2"]]


def test_a_direct_batch_has_the_next_request_of_every_slot() -> None:
    bench = direct()
    for id, sequence in (("a", 1), ("b", 2), ("c", 3)):
        bench.run(id, sequence, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    for id, sequence in (("c2", 3), ("b2", 2), ("c3", 3), ("a3", 1)):
        bench.send(id, sequence)
    bench.instances[0].finish()
    bench.clock.turn()
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids()[3:] == [["a2"], ["a3", "b2", "c2"], ["", "", "c3"]]


def test_lowest_slot_first_and_instances_in_turn() -> None:
    bench = direct(2, num_instances=2)
    for number in range(1, 5):
        bench.run(str(number), number, start=True)
    assert bench.ids(0) == [["1"], ["", "3"]]
    assert bench.ids(1) == [["2"], ["", "4"]]
    bench.run("3e", 3, end=True)
    bench.run("1e", 1, end=True)
    bench.run("5", 5, start=True)
    assert bench.ids(0)[-1] == ["5"]


def test_backlog_is_served_in_order_of_arrival() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    for id, sequence, start in (("b", 2, True), ("c", 3, True), ("b2", 2, False)):
        bench.send(id, sequence, start)
    bench.clock.turn()
    assert bench.ids() == [["a"]]
    bench.run("ae", 1, end=True)
    assert bench.ids() == [["a"], ["ae"], ["b"], ["b2"]]
    bench.run("be", 2, end=True)
    assert bench.ids()[4:] == [["be"], ["c"]]


def test_oldest_stands_in_the_order_in_which_a_sequence_has_something_to_do() -> None:
    bench = Bench(3, rule=BatchRule(4, frozenset({4})))
    for id, sequence in (("a", 1), ("b", 2), ("c", 3)):
        bench.run(id, sequence, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    for id, sequence in (("c2", 3), ("a3", 1), ("b2", 2), ("c3", 3)):
        bench.send(id, sequence)
    bench.instances[0].finish()
    bench.clock.turn()
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids()[3:] == [["a2"], ["c2", "b2", "a3"], ["c3"]]


def test_oldest_never_has_two_requests_of_a_sequence_in_a_batch() -> None:
    bench = Bench(4)
    bench.send("a1", 1, start=True)
    bench.send("a2", 1)
    bench.send("b1", 2, start=True)
    bench.clock.turn()
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids() == [["a1", "b1"], ["a2"]]


def test_a_sequence_is_in_only_one_of_many_batches_of_an_instance() -> None:
    bench = Bench(4)
    bench.instances[0].max_batches = 8
    bench.send("a1", 1, start=True)
    bench.clock.turn()
    bench.send("a2", 1)
    bench.send("b1", 2, start=True)
    bench.clock.turn()
    assert bench.ids() == [["a1"], ["b1"]]
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids() == [["a1"], ["b1"], ["a2"]]


# Shapes and optional inputs.


def test_direct_requests_that_do_not_fit_the_first_slot_wait_for_a_later_batch() -> None:
    rule = BatchRule(4, equal_inputs=frozenset({"INPUT0"}))
    bench = direct(rule=rule)
    for number in (1, 2, 3):
        bench.run(str(number), number, start=True)
    bench.instances[0].is_serving = False
    bench.send("1b", 1, shape=[2])
    bench.send("2b", 2, shape=[3])
    bench.send("3b", 3, shape=[3])
    bench.instances[0].come_back()
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids()[3:] == [["1b", "", ""], ["", "2b", "3b"]]
    null = bench.instances[0].batches[3][1]
    assert null.is_null
    assert null.request.inputs[0].shape == [1, 2]
    assert bytes(null.request.inputs[0].data) == bytes(8)


def test_a_null_string_input_holds_empty_strings() -> None:
    bench = direct()
    bench.run("a", 1, start=True)
    request = InferRequest(
        "m",
        [Tensor("T", "BYTES", [1, 2], b"\1\0\0\0x\0\0\0\0")],
        sequence_id=2,
        sequence_start=True,
    )
    bench.scheduler.enqueue(Job(request, ResponseStream()))
    bench.clock.turn()
    null = bench.instances[0].batches[-1][0]
    assert bytes(null.request.inputs[0].data) == bytes(8)
    assert null.request.sequence_id == 0


# Delays.


def test_direct_waits_for_slots_to_fill_but_not_longer_than_its_delay() -> None:
    bench = direct(4, delay_ms=20, utilization=0.75)
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.clock.advance(19 * MS)
    assert bench.ids() == []
    bench.clock.advance(1 * MS)
    assert bench.ids() == [["a"]]


def test_a_direct_batch_is_sent_at_once_when_enough_slots_are_ready() -> None:
    bench = direct(4, delay_ms=20, utilization=0.5)
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.send("b", 2, start=True)
    bench.clock.turn()
    assert bench.ids() == [["a", "b"]]


def test_a_direct_batch_with_a_delay_and_no_utilization_is_sent_at_once() -> None:
    bench = direct(4, delay_ms=20)
    bench.send("a", 1, start=True)
    bench.clock.turn()
    assert bench.ids() == [["a"]]


def test_oldest_counts_its_delay_from_when_the_request_could_go() -> None:
    bench = Bench(8, rule=BatchRule(4, frozenset({4}), 10 * MS))
    bench.send("a1", 1, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    bench.clock.advance(10 * MS)
    assert bench.ids() == [["a1"]]
    bench.instances[0].finish()
    bench.clock.advance(9 * MS)
    assert bench.ids() == [["a1"]]
    bench.clock.advance(1 * MS)
    assert bench.ids() == [["a1"], ["a2"]]


# What is refused.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"sequence": 0, "start": True},
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            {"sequence": "", "start": True},
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            {"sequence": 7},
            "inference request for sequence 7 to model 'm' must specify the START flag on the "
            "first request of the sequence",
        ),
        (
            {"sequence": 7, "start": True, "batch_size": 2},
            "inference request to model 'm' must specify batch-size 1 due to requirements of "
            "sequence batcher",
        ),
        (
            {"sequence": "seven", "start": True},
            "sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' expects "
            "'UINT64'",
        ),
    ],
)
def test_wrong_requests_are_refused_with_tritons_messages(
    fields: dict[str, Any], words: str
) -> None:
    bench = direct(controls=ALL_CONTROLS)
    with pytest.raises(NaiadError) as caught:
        bench.send("a", **fields)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == words
    assert bench.scheduler.inflight() == 0


def test_a_string_id_has_a_limit() -> None:
    bench = direct()
    bench.run("a", "x" * 128, start=True)
    with pytest.raises(
        NaiadError, match="string correlation ID cannot be longer than 128 characters"
    ):
        bench.send("b", "x" * 129, start=True)


# Controls and ids.


def test_controls_tell_start_ready_end_and_the_id() -> None:
    bench = direct(controls=ALL_CONTROLS)
    bench.run("a", 5, start=True)
    bench.run("b", 2**64 - 1, start=True)
    bench.run("a2", 5)
    bench.run("a3", 5, end=True)
    batches = bench.instances[0].batches
    assert controls_of(batches[0][0]) == {
        "START": b"\1",
        "READY": b"\1",
        "END": b"\0",
        "CORRID": (5).to_bytes(8, "little"),
    }
    assert controls_of(batches[1][0]) == {
        "START": b"\0",
        "READY": b"\0",
        "END": b"\0",
        "CORRID": bytes(8),
    }
    assert controls_of(batches[1][1])["CORRID"] == b"\xff" * 8
    assert controls_of(batches[2][0])["START"] == b"\0"
    assert controls_of(batches[3][0])["END"] == b"\1"


def test_start_on_an_open_sequence_begins_it_anew_in_its_slot() -> None:
    bench = direct(controls=ALL_CONTROLS)
    bench.run("a", 1, start=True)
    bench.run("b", 2, start=True)
    bench.run("b2", 2, start=True)
    assert bench.ids()[-1] == ["", "b2"]
    assert controls_of(bench.instances[0].batches[-1][1])["START"] == b"\1"
    assert bench.scheduler.inflight() == 0


def test_an_id_is_free_again_once_its_end_has_come_even_when_that_still_waits() -> None:
    bench = direct()
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.send("ae", 1, end=True)
    bench.send("b", 1, start=True)
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("x", 2)
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids() == [["a"], ["ae", "b"]]


# Idleness.


def test_an_idle_sequence_gives_its_slot_to_the_backlog() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.send("b", 2, start=True)
    bench.clock.advance(IDLE_NS - 1)
    assert bench.ids() == [["a"]]
    bench.clock.advance(1)
    assert bench.ids() == [["a"], ["b"]]
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a2", 1)


def test_a_request_starts_the_idle_time_anew() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.clock.advance(IDLE_NS - 1)
    bench.run("a2", 1)
    bench.clock.advance(IDLE_NS - 1)
    bench.run("a3", 1)
    bench.clock.advance(IDLE_NS)
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a4", 1)


def test_who_executes_or_waits_for_an_instance_or_a_slot_is_not_idle() -> None:
    bench = direct(1)
    bench.send("a", 1, start=True)
    bench.send("b", 2, start=True)
    bench.clock.turn()
    bench.clock.advance(3 * IDLE_NS)
    bench.send("a2", 1)
    bench.clock.advance(3 * IDLE_NS)
    bench.instances[0].finish()
    bench.clock.turn()
    bench.instances[0].finish()
    assert bench.ids() == [["a"], ["a2"]]
    bench.clock.advance(IDLE_NS)
    assert bench.ids() == [["a"], ["a2"], ["b"]]


def test_the_shortest_timeout_in_the_backlog_ends_the_whole_sequence() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.send("b", 2, start=True, timeout_us=500_000)
    bench.send("b2", 2, timeout_us=20_000)
    bench.send("c", 3, start=True)
    bench.clock.advance(20 * MS)
    for id in ("b", "b2"):
        assert bench.error(id).code is Code.UNAVAILABLE
        assert bench.error(id).message == "timeout of the corresponding sequence has been expired"
    assert bench.statistics.failures["REJECTED"] == 2
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("b3", 2)
    bench.run("ae", 1, end=True)
    assert bench.ids()[-1] == ["c"]


def test_a_timeout_has_no_say_once_the_sequence_has_its_slot() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.send("b", 2, start=True, timeout_us=20_000)
    bench.run("ae", 1, end=True)
    bench.clock.advance(30 * MS)
    assert bench.answers["b"].error is None
    assert bench.ids()[-1] == ["b"]


# Cancellation.


def test_cancelling_a_waiting_request_ends_its_sequence() -> None:
    bench = direct(2)
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.send("a2", 1)
    doomed = bench.send("a3", 1)
    bench.send("a4", 1)
    doomed.cancel()
    assert bench.error("a3").code is Code.CANCELLED
    assert (bench.error("a4").code, bench.error("a4").message) == BROKEN
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a5", 1)
    bench.instances[0].finish()
    bench.clock.turn()
    bench.instances[0].finish()
    assert bench.ids() == [["a"], ["a2"]]
    assert bench.statistics.failures["CANCELED"] == 1
    bench.run("b", 2, start=True)
    assert bench.ids()[-1] == ["b"]


def test_cancelling_in_the_backlog_leaves_the_others_in_order() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    doomed = bench.send("b", 2, start=True)
    bench.send("b2", 2)
    bench.send("c", 3, start=True)
    doomed.cancel()
    assert (bench.error("b2").code, bench.error("b2").message) == BROKEN
    bench.run("ae", 1, end=True)
    assert bench.ids()[-1] == ["c"]


def test_cancelling_a_request_that_executes_ends_its_sequence_when_it_has_executed() -> None:
    bench = with_state()
    doomed = bench.send("a", 1, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    doomed.cancel()
    assert bench.scheduler.has_sequence(1)
    bench.instances[0].finish()
    assert (bench.error("a2").code, bench.error("a2").message) == BROKEN
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a3", 1)
    bench.run("b", 1, start=True)
    assert bench.ids() == [["a"], ["b"]]


@pytest.mark.parametrize("is_executing", [False, True])
def test_a_sequence_with_a_lost_request_ends_and_may_start_again(is_executing: bool) -> None:
    bench = direct(1)
    bench.send("a", 1, start=True)
    if is_executing:
        bench.clock.turn()
    bench.send("a2", 1)
    bench.send("b", 2, start=True)
    bench.scheduler.break_sequence(3)
    bench.scheduler.break_sequence(1)
    assert not bench.scheduler.has_sequence(1)
    for id in ("a2",) if is_executing else ("a", "a2"):
        assert (bench.error(id).code, bench.error(id).message) == BROKEN
        assert bench.error(id).retry_after_s == 1
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a3", 1)
    if is_executing:
        bench.instances[0].finish()
        assert bench.answers["a"].error is None
    bench.send("a4", 1, start=True)  # behind sequence 2
    bench.run("be", 2, end=True)
    bench.run("ae", 1, end=True)
    assert bench.ids()[-4:] == [["b"], ["be"], ["a4"], ["ae"]]
    assert bench.scheduler.inflight() == bench.statistics.pending_request_count == 0


def test_a_sequence_in_the_backlog_with_a_lost_request_ends() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.send("b", 2, start=True)
    bench.scheduler.break_sequence(2)
    assert (bench.error("b").code, bench.error("b").message) == BROKEN
    bench.send("c", 3, start=True)
    bench.run("ae", 1, end=True)
    assert bench.ids()[-1] == ["c"]


# Answers that come later.


def test_a_decoupled_model_gets_the_next_request_when_execute_has_returned() -> None:
    bench = Bench(2)
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.send("a2", 1)
    (first,) = bench.instances[0].finish(is_answered=False)
    bench.clock.turn()
    assert bench.ids() == [["a"], ["a2"]]
    bench.instances[0].finish()
    bench.instances[0].respond(first)
    assert [id for id, _ in bench.all] == ["a2", "a"]


def test_preserve_ordering_holds_responses_back() -> None:
    bench = Bench(2, num_instances=2, preserve_ordering=True)
    bench.send("a", 1, start=True)
    bench.send("b", 2, start=True)
    bench.clock.turn()
    bench.instances[1].finish()
    assert bench.all == []
    bench.instances[0].finish()
    assert [id for id, _ in bench.all] == ["a", "b"]


# Iterative sequences.


def test_an_iterative_request_comes_again_until_the_model_is_done() -> None:
    bench = Bench(2, is_iterative=True, controls=ALL_CONTROLS)
    bench.send("a", 0)
    bench.clock.turn()
    for _ in range(2):
        bench.instances[0].finish(rescheduled=("a",))
        bench.clock.turn()
    assert bench.all == []
    bench.instances[0].finish()
    assert bench.ids() == [["a"], ["a"], ["a"]]
    job = bench.instances[0].batches[0][0]
    assert job.request.sequence_id == 1
    assert [tensor.name for tensor in job.request.inputs] == [
        "INPUT0",
        "START",
        "READY",
        "END",
        "CORRID",
    ]
    assert controls_of(job)["START"] == b"\0"
    assert bench.all == [("a", True)]
    assert bench.scheduler.inflight() == 0


def test_iterative_requests_get_ids_of_their_own_and_share_batches() -> None:
    bench = Bench(2, is_iterative=True)
    bench.send("x", 1, start=True)
    bench.send("a", 0)
    bench.send("b", 0)
    bench.clock.turn()
    assert [job.request.sequence_id for job in bench.instances[0].batches[0]] == [1, 2]
    bench.instances[0].finish(rescheduled=("x",))
    bench.clock.turn()
    assert bench.ids() == [["x", "a"], ["x", "b"]]
    assert bench.instances[0].batches[1][1].request.sequence_id == 3


def test_an_iterative_sequence_needs_start_when_it_names_its_id() -> None:
    bench = Bench(2, is_iterative=True)
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a", 5)


def test_a_cancelled_iterative_request_does_not_come_again() -> None:
    bench = Bench(1, is_iterative=True)
    stream = bench.send("a", 0)
    bench.send("b", 0)
    bench.clock.turn()
    stream.cancel()
    bench.instances[0].finish(rescheduled=("a",))
    bench.clock.turn()
    assert bench.error("a").code is Code.CANCELLED
    assert bench.ids() == [["a"], ["b"]]


# Implicit state.


def state_of(job: Job) -> bytes:
    return next(bytes(tensor.data) for tensor in job.request.inputs if tensor.name == "IN")


def with_state(*, is_exposed: bool = False) -> Bench:
    initial = Tensor("IN", "UINT8", [1, 1], b"\x05")
    hidden = frozenset() if is_exposed else frozenset({"OUT"})
    bench = direct(state=ImplicitState([StateTensor("OUT", initial)], hidden))

    def answer(job: Job) -> list[Tensor]:
        after = bytes([state_of(job)[0] + 1])
        return [Tensor("OUTPUT0", "UINT8", [1, 1], after), Tensor("OUT", "UINT8", [1, 1], after)]

    bench.instances[0].answer = answer
    return bench


def test_state_goes_from_a_response_to_the_next_request_and_start_resets_it() -> None:
    bench = with_state()
    for id, start in (("a", True), ("a2", False), ("a3", False), ("a4", True)):
        bench.run(id, 1, start=start)
    assert [state_of(batch[0]) for batch in bench.instances[0].batches] == [
        b"\x05",
        b"\x06",
        b"\x07",
        b"\x05",
    ]


def test_each_sequence_has_its_own_state() -> None:
    bench = with_state()
    bench.run("a", 1, start=True)
    bench.run("a2", 1)
    bench.run("b", 2, start=True)
    null, job = bench.instances[0].batches[-1]
    assert null.is_null
    assert state_of(null) == state_of(job) == b"\x05"


def test_state_is_hidden_unless_it_is_an_output_or_asked_for() -> None:
    bench = with_state()
    bench.run("a", 1, start=True)
    assert [tensor.name for tensor in bench.answers["a"].outputs] == ["OUTPUT0"]
    assert bench.instances[0].batches[0][0].request.requested_outputs == ["OUTPUT0", "OUT"]
    exposed = with_state(is_exposed=True)
    exposed.run("a", 1, start=True)
    assert [tensor.name for tensor in exposed.answers["a"].outputs] == ["OUTPUT0", "OUT"]
    exposed.run("b", 1, requested_outputs=["OUT"])
    assert [tensor.name for tensor in exposed.answers["b"].outputs] == ["OUT"]


def test_with_state_the_next_request_waits_for_the_response() -> None:
    bench = with_state()
    bench.send("a", 1, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    (job,) = bench.instances[0].finish(is_answered=False)
    bench.clock.turn()
    assert bench.ids() == [["a"]]
    bench.instances[0].respond(job)
    bench.clock.turn()
    assert bench.ids() == [["a"], ["a2"]]
    assert state_of(bench.instances[0].batches[1][0]) == b"\x06"


def test_a_failed_request_leaves_the_state_as_it_was() -> None:
    bench = with_state()
    bench.run("a", 1, start=True)
    bench.send("bad", 1)
    bench.clock.turn()
    (job,) = bench.instances[0].finish(is_answered=False)
    job.stream.fail(NaiadError(Code.INTERNAL, "no"))
    bench.run("a2", 1)
    assert state_of(bench.instances[0].batches[-1][0]) == b"\x06"


# Instances that come and go.


def test_the_sequences_of_a_dead_instance_are_over_and_the_others_go_on() -> None:
    bench = direct(1, num_instances=2)
    bench.run("a", 1, start=True)
    bench.run("b", 2, start=True)
    bench.send("c", 3, start=True)
    bench.send("a2", 1)
    bench.clock.turn()
    bench.send("a3", 1)
    bench.instances[0].die()
    assert bench.error("a2").code is Code.INTERNAL
    assert bench.error("a3").code is Code.UNAVAILABLE
    assert "start the sequence again" in bench.error("a3").message
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("a4", 1)
    bench.run("b2", 2)
    assert bench.ids(1)[-1] == ["b2"]
    bench.instances[0].come_back()
    bench.clock.turn()
    assert bench.ids(0)[-1] == ["c"]


def test_a_sequence_waits_for_an_instance_that_comes_back_but_not_for_broken_ones() -> None:
    bench = direct(1)
    bench.instances[0].die()
    bench.send("a", 1, start=True)
    bench.clock.turn()
    bench.instances[0].come_back()
    bench.clock.turn()
    bench.instances[0].finish()
    assert bench.answers["a"].error is None
    bench.send("b", 2, start=True)
    bench.instances[0].die(outage="it crashes in a loop")
    assert bench.error("b").code is Code.UNAVAILABLE


def test_a_new_instance_gets_sequences_from_the_backlog() -> None:
    bench = direct(1)
    bench.run("a", 1, start=True)
    bench.send("b", 2, start=True)
    bench.instances.append(FakeInstance())
    bench.scheduler.add_instance(bench.instances[1])
    bench.clock.turn()
    assert bench.ids(1) == [["b"]]


async def test_an_instance_that_is_to_go_keeps_its_sequences_to_their_end() -> None:
    bench = direct(2, num_instances=2)
    bench.run("a", 1, start=True)
    leaving = asyncio.ensure_future(bench.scheduler.remove_instance(bench.instances[0]))
    await asyncio.sleep(0)
    for number in (2, 3, 4):
        bench.run(str(number), number, start=True) if number < 4 else bench.send("4", 4, start=True)
    assert bench.ids(1) == [["2"], ["", "3"]]
    assert bench.scheduler.has_sequence(1)
    assert not leaving.done()
    bench.run("ae", 1, end=True)
    await leaving
    bench.clock.turn()
    assert bench.ids(0) == [["a"], ["ae"]]
    assert not bench.scheduler.has_sequence(1)


# The end.


async def test_stop_lets_open_sequences_finish_and_refuses_new_ones() -> None:
    bench = direct(2)
    bench.run("a", 1, start=True)
    bench.run("b", 2, start=True)
    stopping = asyncio.ensure_future(bench.scheduler.stop())
    await asyncio.sleep(0)
    with pytest.raises(NaiadError, match="has stopped accepting new inference requests"):
        bench.send("c", 3, start=True)
    bench.run("a2", 1, end=True)
    assert bench.answers["a2"].error is None
    await asyncio.sleep(0)
    assert not stopping.done()
    bench.clock.advance(IDLE_NS)
    await stopping


def test_waiting_requests_are_counted_as_pending() -> None:
    bench = direct(1)
    bench.send("a", 1, start=True)
    bench.send("b", 2, start=True)
    assert bench.statistics.pending_request_count == 2
    assert bench.scheduler.inflight() == 2
    bench.clock.turn()
    assert bench.statistics.pending_request_count == 1
    assert bench.scheduler.inflight() == 2


def test_the_limit_of_the_server_counts_sequences_that_wait_for_a_slot() -> None:
    bench = direct(1)
    bench.scheduler._max_queue_size = 2
    for sequence in (1, 2, 3):  # one has the slot
        bench.send(f"s{sequence}", sequence, start=True)
    with pytest.raises(NaiadError, match="Exceeds maximum queue size") as caught:
        bench.send("s4", 4, start=True)
    assert caught.value.retry_after_s == 1
    assert not bench.scheduler.has_sequence(4)
    assert bench.statistics.failures["REJECTED"] == 1
    for number in range(50):  # no request of a sequence that was accepted is refused
        bench.send(f"c{number}", 1 + number % 3)
    assert bench.statistics.pending_request_count == 53
    bench.send("call", 5, start=True, is_admitted=True)


# API keys.

ALICE, BOB = Identity("alice"), Identity("bob")


@pytest.mark.parametrize("id", [7, "seven"])
def test_keys_with_the_same_sequence_id_have_sequences_of_their_own(id: int | str) -> None:
    datatype = "BYTES" if isinstance(id, str) else "UINT64"
    bench = direct(2, controls=SequenceControls(None, None, None, ("CORRID", datatype), [1, 1]))
    bench.run("a", id, start=True, identity=ALICE)
    with pytest.raises(NaiadError, match="must specify the START flag"):
        bench.send("b", id, identity=BOB)
    bench.run("b", id, start=True, identity=BOB)
    bench.run("a2", id, identity=ALICE)
    bench.run("b2", id, end=True, identity=BOB)
    jobs = {job.request.id: job.request for batch in bench.instances[0].batches for job in batch}
    assert jobs["a"].sequence_id == jobs["a2"].sequence_id == id
    assert jobs["b"].sequence_id == jobs["b2"].sequence_id != id
    assert controls_of_request(jobs["b2"]) != controls_of_request(jobs["a2"])
    assert bench.scheduler.has_sequence(("alice", id))
    assert not bench.scheduler.has_sequence(("bob", id))
    bench.run("a3", id, end=True, identity=ALICE)
    bench.run("b3", id, start=True, identity=BOB)
    assert bench.instances[0].batches[-1][0].request.sequence_id == id


def controls_of_request(request: InferRequest) -> bytes:
    return next(bytes(tensor.data) for tensor in request.inputs if tensor.name == "CORRID")


def test_a_key_that_starts_many_sequences_does_not_shut_out_another() -> None:
    bench = Bench(slots=1, num_instances=2)
    for number in range(1, 9):
        bench.send(f"a{number}", number, start=True, end=True, identity=ALICE)
    for number in (1, 2):
        bench.send(f"b{number}", number, start=True, end=True, identity=BOB)
    order: list[str] = []
    bench.clock.turn()
    while any(instance.running for instance in bench.instances):
        for instance in bench.instances:
            if instance.running:
                order += instance.ids[-1]
                instance.finish()
                bench.clock.turn()
    assert len(order) == 10
    assert max(order.index("b1"), order.index("b2")) <= 4
    assert [id for id in order if id.startswith("a")] == [f"a{number}" for number in range(1, 9)]


def test_the_sequence_of_a_model_does_not_depend_on_the_key_it_works_for() -> None:
    bench = Bench()
    bench.run("one", 7, start=True, identity=ALICE, is_call=True)
    bench.run("two", 7, is_call=True)
    bench.run("three", 7, end=True, identity=BOB, is_call=True)
    assert [response.error for response in bench.answers.values()] == [None] * 3
