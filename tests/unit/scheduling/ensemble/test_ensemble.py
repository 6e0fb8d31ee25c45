"""Ensembles as data flow: `infer` is a fake that the test answers by hand."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from naiad import log
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, invalid_arg, unavailable
from naiad.scheduling.ensemble.ensemble import EnsembleScheduler
from naiad.scheduling.ensemble.plan import BatchConversion, EnsemblePlan, Step, TensorReshape
from tests.fakes import FakeClock


def tensor(name: str, value: bytes = b"") -> Tensor:
    return Tensor(name, "UINT8", [len(value)], value)


class Bench:
    def __init__(
        self,
        *steps: Step,
        outputs: list[str],
        is_decoupled: bool = False,
        max_inflight: int = 4,
        **plan_fields: Any,
    ) -> None:
        plan = EnsemblePlan(
            "e", "1", list(steps), outputs, is_decoupled, max_inflight, **plan_fields
        )
        self.statistics = ModelStatistics("e", 1)
        self.scheduler = EnsembleScheduler(plan, self.infer, FakeClock(), self.statistics)
        self.running: dict[str, list[tuple[InferRequest, ResponseStream]]] = {}
        self.refusal: NaiadError | None = None
        self.at_once: dict[str, list[Tensor]] = {}
        """Outputs of models that have answered before `infer` returns, as a cache does."""
        self.answers: list[InferResponse | None] = []
        self.is_final = False
        self.paused: dict[str, bool] = {}

    def infer(self, job: Job) -> ResponseStream:
        request = job.request
        if self.refusal is not None:
            raise self.refusal
        stream = ResponseStream()
        stream.on_flow(lambda is_paused: self.paused.__setitem__(request.model_name, is_paused))
        if request.model_name in self.at_once:
            stream.put(
                InferResponse(request.model_name, "1", "", self.at_once[request.model_name]), True
            )
        else:
            self.running.setdefault(request.model_name, []).append((request, stream))
        return stream

    def send(self, *inputs: Tensor, **fields: Any) -> ResponseStream:
        stream = self.scheduler.enqueue(
            Job(InferRequest("e", list(inputs), **fields), ResponseStream())
        )
        stream.deliver_to(self._take)
        return stream

    def _take(self, response: InferResponse | None, is_final: bool) -> None:
        assert not self.is_final
        self.answers.append(response)
        self.is_final = is_final

    def request(self, model: str) -> InferRequest:
        return self.running[model][0][0]

    def stream(self, model: str) -> ResponseStream:
        return self.running[model][0][1]

    def answer(self, model: str, *outputs: Tensor, is_final: bool = True, **fields: Any) -> None:
        stream = self.running[model].pop(0)[1] if is_final else self.running[model][0][1]
        stream.put(InferResponse(model, "1", "", list(outputs), **fields), is_final)

    def waiting(self) -> list[str]:
        return sorted(model for model, requests in self.running.items() for _ in requests)

    def values(self) -> list[dict[str, bytes]]:
        return [
            {t.name: bytes(t.data) for t in answer.outputs}
            for answer in self.answers
            if answer is not None
        ]

    def error(self) -> NaiadError:
        (answer,) = self.answers
        assert answer is not None
        assert answer.error is not None
        return answer.error


A = Step("a", "", {"x": "IN"}, {"y": "t1"})
B = Step("b", "", {"x": "IN"}, {"y": "t2"})
JOIN = Step("join", "3", {"l": "t1", "r": "t2"}, {"y": "OUT"})


def test_ready_steps_start_at_once_and_the_join_waits_for_both() -> None:
    bench = Bench(JOIN, A, B, outputs=["OUT"])
    bench.send(
        tensor("IN", b"q"), id="7", priority=2, timeout_us=9, parameters={"k": 1}, sequence_id=5
    )
    assert bench.waiting() == ["a", "b"]
    request = bench.request("a")
    assert [(t.name, bytes(t.data)) for t in request.inputs] == [("x", b"q")]
    assert (
        request.id,
        request.priority,
        request.timeout_us,
        request.parameters,
        request.sequence_id,
    ) == ("7", 2, 9, {"k": 1}, 5)
    bench.answer("a", tensor("y", b"1"))
    assert bench.waiting() == ["b"]
    bench.answer("b", tensor("y", b"2"))
    assert bench.waiting() == ["join"]
    assert bench.request("join").model_version == "3"
    bench.answer("join", tensor("y", b"12"))
    assert bench.values() == [{"OUT": b"12"}]
    assert bench.is_final
    assert bench.statistics.success.count == 1
    assert bench.scheduler.inflight() == 0


def test_steps_that_do_not_feed_the_requested_outputs_do_not_run() -> None:
    bench = Bench(A, B, outputs=["t1", "t2"])
    bench.send(tensor("IN"), requested_outputs=["t2"])
    assert bench.waiting() == ["b"]
    bench.answer("b", tensor("y", b"2"))
    assert bench.values() == [{"t2": b"2"}]


def test_an_optional_input_that_is_not_given_does_not_hold_a_step_up() -> None:
    bench = Bench(Step("a", "", {"x": "IN", "hint": "HINT"}, {"y": "OUT"}), outputs=["OUT"])
    bench.send(tensor("IN"))
    assert [t.name for t in bench.request("a").inputs] == ["x"]


def test_an_error_in_a_step_fails_the_request_and_cancels_the_rest() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.send(tensor("IN"))
    other = bench.stream("b")
    bench.stream("a").fail(NaiadError(Code.UNAVAILABLE, "queue full", 3))
    assert (bench.error().code, bench.error().message, bench.error().retry_after_s) == (
        Code.UNAVAILABLE,
        "in ensemble 'e', queue full",
        3,
    )
    assert other.is_cancelled
    other.close()
    assert bench.statistics.fail.count == 1


def test_a_step_that_is_refused_fails_the_request() -> None:
    bench = Bench(A, outputs=["t1"])
    bench.refusal = invalid_arg("no such shape")
    bench.send(tensor("IN"))
    assert bench.error().message == "in ensemble 'e', no such shape"


def test_an_empty_batch_of_a_step_names_its_tensor() -> None:
    """Triton's sentence blames the client for what a step has sent."""
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.send(tensor("IN", b"x"))
    refusal = "[request id: 7] inference request batch-size must be >= 1 for 'join'"
    bench.refusal = invalid_arg(refusal)
    bench.stream("a").put(InferResponse("a", "1", "", [tensor("y", b"x")]), True)
    bench.stream("b").put(InferResponse("b", "1", "", [tensor("y", b"")]), True)
    assert bench.error().message == (
        f"in ensemble 'e', {refusal}; the ensemble's tensor 't2' is empty: call the model from a "
        "model.py (BLS), which can leave the call out, or pad the tensor"
    )


def test_cancelling_the_request_cancels_every_step_that_runs() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.send(tensor("IN")).cancel()
    assert bench.stream("a").is_cancelled
    assert bench.stream("b").is_cancelled
    assert bench.error().code is Code.CANCELLED


def test_a_step_that_ends_without_a_response_is_a_deadlock() -> None:
    bench = Bench(A, Step("c", "", {"x": "t1"}, {"y": "OUT"}), outputs=["OUT"])
    bench.send(tensor("IN"))
    bench.stream("a").close()
    assert bench.error().message == (
        "in ensemble 'e', [request id: <id_unknown>] unexpected deadlock, at least one output is "
        "not set "
        "while no more ensemble steps can be made"
    )


def test_an_output_that_a_step_leaves_out_is_absent_for_later_steps() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.send(tensor("IN"))
    bench.answer("a")
    bench.answer("b", tensor("y", b"2"))
    assert [t.name for t in bench.request("join").inputs] == ["r"]


def test_an_output_that_a_step_leaves_out_is_absent_from_the_response() -> None:
    bench = Bench(A, B, outputs=["t1", "t2"])
    bench.send(tensor("IN"))
    bench.answer("a")
    bench.answer("b", tensor("y", b"2"))
    assert bench.values() == [{"t2": b"2"}]
    assert bench.is_final


@pytest.mark.parametrize("level", [0, 1])
def test_an_output_that_is_left_out_is_in_the_log(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(log.settings, "log_verbose_level", level)
    monkeypatch.setattr(log, "verbose", lambda level, message: lines.append((level, message)))
    bench = Bench(Step("a", "", {"x": "IN"}, {"y": "Y", "z": "Z"}), outputs=["Y", "Z"])
    bench.send(tensor("IN", b"q"))
    bench.answer("a", tensor("y", b"1"))
    assert bench.values() == [{"Y": b"1"}]
    assert lines == ([(1, "Composing models did not output tensor Z")] if level else [])


def test_a_step_that_responds_at_once_is_not_mistaken_for_the_last() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.at_once["a"] = [tensor("y", b"1")]
    bench.send(tensor("IN"))
    assert bench.waiting() == ["b"]
    bench.at_once["join"] = [tensor("y", b"12")]
    bench.answer("b", tensor("y", b"2"))
    assert bench.values() == [{"OUT": b"12"}]


def test_a_tensor_with_several_readers_is_read_only_and_one_with_a_single_reader_is_not() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    data = memoryview(bytearray(4))
    bench.send(Tensor("IN", "UINT8", [4], data))
    shared = bench.request("a").inputs[0].data
    assert isinstance(shared, memoryview)
    assert shared.readonly
    bench.answer("a", Tensor("y", "UINT8", [4], data))
    bench.answer("b", Tensor("y", "UINT8", [4], data))
    assert bench.request("join").inputs[0].data is data


def test_the_response_has_the_sequence_and_the_parameters_of_the_last_steps() -> None:
    bench = Bench(A, Step("c", "", {"x": "t1"}, {"y": "OUT"}), outputs=["OUT"])
    bench.send(tensor("IN"), sequence_id=7, sequence_start=True)
    bench.answer("a", tensor("y"), parameters={"early": 1})
    bench.answer("c", tensor("y"), parameters={"late": "x"})
    (answer,) = bench.answers
    assert answer is not None
    assert answer.parameters == {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "late": "x",
    }


def test_a_step_may_say_which_sequence_its_outputs_belong_to() -> None:
    bench = Bench(A, Step("c", "", {"x": "t1"}, {"y": "OUT"}), B, outputs=["OUT", "t2"])
    bench.send(tensor("IN"), sequence_id=7, sequence_start=True)
    bench.answer("a", tensor("y"), parameters={"sequence_id": "other", "sequence_end": True})
    request = bench.request("c")
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (
        "other",
        True,
        True,
    )
    request = bench.request("b")
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (7, True, False)


def test_compute_time_is_the_sum_of_the_steps() -> None:
    bench = Bench(A, B, JOIN, outputs=["OUT"])
    bench.send(tensor("IN"))
    for model in ("a", "b", "join"):
        bench.answer(model, tensor("y"), times=BatchTimes(100, 101, 111, 131))
    statistics = bench.statistics
    assert (
        statistics.compute_input.ns,
        statistics.compute_infer.ns,
        statistics.compute_output.ns,
    ) == (3, 30, 60)
    assert statistics.execution_count == 1
    (answer,) = bench.answers
    assert answer is not None
    assert answer.times is not None


DECOUPLED = Step("d", "", {"x": "IN"}, {"y": "t1"}, is_decoupled=True)
AFTER = Step("after", "", {"x": "t1", "all": "IN"}, {"y": "OUT"})


def test_each_response_of_a_decoupled_step_runs_the_later_steps() -> None:
    bench = Bench(DECOUPLED, AFTER, outputs=["OUT"], is_decoupled=True)
    bench.send(tensor("IN", b"q"))
    bench.answer("d", tensor("y", b"1"), is_final=False)
    bench.answer("d", tensor("y", b"2"), is_final=False)
    assert [(t.name, bytes(t.data)) for t in bench.request("after").inputs] == [
        ("x", b"1"),
        ("all", b"q"),
    ]
    bench.answer("after", tensor("y", b"A"))
    assert bench.values() == [{"OUT": b"A"}]
    bench.stream("d").close()
    bench.running.pop("d")
    assert not bench.is_final
    bench.answer("after", tensor("y", b"B"))
    assert bench.values() == [{"OUT": b"A"}, {"OUT": b"B"}]
    assert bench.is_final


def test_a_decoupled_step_may_send_no_response() -> None:
    bench = Bench(DECOUPLED, AFTER, outputs=["OUT"], is_decoupled=True)
    bench.send(tensor("IN"))
    bench.stream("d").close()
    assert bench.answers == [None]
    assert bench.is_final


def test_a_producer_that_is_too_fast_is_held_back() -> None:
    bench = Bench(DECOUPLED, AFTER, outputs=["OUT"], is_decoupled=True, max_inflight=2)
    bench.send(tensor("IN"))
    bench.answer("d", tensor("y", b"1"), is_final=False)
    assert not bench.paused.get("d")
    bench.answer("d", tensor("y", b"2"), is_final=False)
    assert bench.paused["d"]
    bench.answer("after", tensor("y", b"A"))
    assert not bench.paused["d"]


def test_the_last_response_carries_the_final_flag_when_no_step_runs() -> None:
    bench = Bench(DECOUPLED, AFTER, outputs=["OUT"], is_decoupled=True)
    bench.send(tensor("IN"))
    bench.answer("d", tensor("y", b"1"))
    assert not bench.is_final
    bench.answer("after", tensor("y", b"A"))
    assert bench.is_final
    assert len(bench.answers) == 1


def test_after_a_decoupled_step_that_ends_the_flow_comes_an_empty_final_flag() -> None:
    bench = Bench(DECOUPLED, outputs=["t1"], is_decoupled=True)
    bench.send(tensor("IN"))
    bench.answer("d", tensor("y", b"1"), is_final=False)
    bench.stream("d").close()
    assert [answer is None for answer in bench.answers] == [False, True]


def test_an_error_on_the_way_ends_the_stream_and_the_producer() -> None:
    bench = Bench(DECOUPLED, AFTER, outputs=["OUT"], is_decoupled=True)
    bench.send(tensor("IN"))
    bench.answer("d", tensor("y", b"1"), is_final=False)
    bench.answer("d", tensor("y", b"2"), is_final=False)
    bench.answer("after", tensor("y", b"A"))
    bench.stream("after").fail(invalid_arg("no"))
    assert bench.is_final
    assert bench.answers[-1] is not None
    assert bench.answers[-1].error is not None
    assert bench.stream("d").is_cancelled
    bench.answer("d", tensor("y", b"3"))
    assert len(bench.answers) == 2


def test_a_reader_that_cannot_keep_up_holds_the_steps_back() -> None:
    bench = Bench(DECOUPLED, outputs=["t1"], is_decoupled=True)
    stream = bench.send(tensor("IN"))
    stream.pause()
    assert bench.paused["d"]
    stream.pause(False)
    assert not bench.paused["d"]


def test_the_ensembles_own_reshape_is_between_its_clients_and_its_steps() -> None:
    bench = Bench(
        A,
        outputs=["t1"],
        input_reshapes={"IN": TensorReshape([4], [2, 2], 1)},
        output_reshapes={"t1": TensorReshape([2, 2], [4], 1)},
    )
    bench.send(Tensor("IN", "UINT8", [3, 4], bytes(12)))
    assert bench.request("a").inputs[0].shape == [3, 2, 2]
    bench.answer("a", Tensor("y", "UINT8", [3, 2, 2], bytes(12)))
    (answer,) = bench.answers
    assert answer is not None
    assert answer.outputs[0].shape == [3, 4]


async def test_stop_waits_for_runs() -> None:
    bench = Bench(A, outputs=["t1"])
    bench.send(tensor("IN"))
    stopping = asyncio.create_task(bench.scheduler.stop())
    await asyncio.sleep(0)
    with pytest.raises(NaiadError) as refused:
        bench.send(tensor("IN"))
    assert refused.value.code is unavailable("").code
    bench.answer("a", tensor("y", b"1"))
    await stopping


def test_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    """At thousands of requests per second it would be the dearest part of them."""
    # Other threads may leave something of theirs meanwhile, but not each time.
    assert min(garbage_of_a_request() for _ in range(5)) == 0


def garbage_of_a_request() -> int:
    first, second = (
        Step("a", "", {"x": "IN"}, {"y": "MID"}),
        Step("b", "", {"x": "MID"}, {"y": "OUT"}),
    )
    bench = Bench(first, second, outputs=["OUT"])
    gc.collect()
    gc.disable()
    try:
        bench.send(tensor("IN", b"1"))
        bench.answer("a", tensor("y", b"2"))
        bench.answer("b", tensor("y", b"3"))
        assert bench.values() == [{"OUT": b"3"}]
        bench.answers.clear()
        return gc.collect()
    finally:
        gc.enable()


# Between models with and without a batch dimension.


@pytest.mark.parametrize(
    ("dims", "has_batch", "shape", "converted"),
    [
        ([2], True, [2], [1, 2]),
        ([-1], True, [3], [1, 3]),
        ([2], True, [3, 2], [3, 2]),
        ([2], True, [3], [3]),
        ([], True, [], [1]),
        ([2], False, [1, 2], [2]),
        ([2], False, [3, 2], [3, 2]),
        ([-1, 2], False, [1, 2], [1, 2]),
        ([-1, 2], False, [3, 2], [3, 2]),
        ([-1, 2], False, [1, 3, 2], [3, 2]),
        ([5], False, [1, 4], [4]),
        ([5], False, [], []),
    ],
)
def test_a_batch_dimension_comes_or_goes(
    dims: list[int], has_batch: bool, shape: list[int], converted: list[int]
) -> None:
    assert BatchConversion(dims, has_batch).shape(shape) == converted


def test_inputs_of_steps_and_outputs_are_converted() -> None:
    first = Step("a", "", {"x": "IN"}, {"y": "MID"}, False, {"x": BatchConversion([2], False)})
    second = Step("b", "", {"x": "MID"}, {"y": "OUT"}, False, {"x": BatchConversion([2], True)})
    bench = Bench(
        first, second, outputs=["OUT"], output_conversions={"OUT": BatchConversion([2], False)}
    )
    bench.send(Tensor("IN", "UINT8", [1, 2], b"12"))
    assert bench.request("a").inputs[0].shape == [2]
    bench.answer("a", Tensor("y", "UINT8", [2], b"34"))
    assert bench.request("b").inputs[0].shape == [1, 2]
    bench.answer("b", Tensor("y", "UINT8", [1, 2], b"56"))
    (response,) = bench.answers
    assert response is not None
    assert response.outputs == [Tensor("OUT", "UINT8", [2], b"56")]


def test_batches_are_not_relayed_where_they_are_converted() -> None:
    conversion = {"x": BatchConversion([2], True)}
    first = Step("a", "", {"x": "IN"}, {"y": "MID"})
    second = Step("b", "", {"x": "MID"}, {"y": "OUT"}, False, conversion)
    route = EnsemblePlan("e", "1", [first, second], ["OUT"], False, 4).route([])
    assert route.steps[0].sole_successor is None
    plain = EnsemblePlan("e", "1", [first, JOIN], ["OUT"], False, 4)
    assert plain.route([]).steps[-1].is_last
    converted = EnsemblePlan(
        "e", "1", [first, JOIN], ["OUT"], False, 4, None, None, {"OUT": conversion["x"]}
    )
    assert not converted.route([]).steps[-1].is_last
