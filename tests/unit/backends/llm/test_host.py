"""Tests of the engine's host with a scripted engine: merging for slow readers, cancellation,
rejected requests, failing steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

from naiad.backends.llm.backend import TensorFormat
from naiad.backends.llm.host import EngineHost
from naiad.backends.llm.metrics import EngineMetrics
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.pending_response import PendingResponse, Progress
from naiad.backends.llm.tensors import text_tensor
from naiad.core.tensor import Tensor
from naiad.errors import unavailable
from naiad.ipc.work import WorkResponse
from naiad.llm.engine_statistics import EngineLoad, EngineStatistics
from naiad.llm.generation import FinishReason, GenerationRequest, TokenOutput
from naiad.llm.parameters import SamplingParameters
from naiad.metrics.operation import MetricOperation

WAIT_S = 60.0


class ScriptedEngine:
    """Makes a step when the test allows it, and returns the outputs that the test chose."""

    def __init__(self) -> None:
        self.statistics = EngineStatistics()
        self.open: dict[str, GenerationRequest] = {}
        self.cancelled: list[str] = []
        self.num_ended: dict[str, int] = {}
        self.steps: list[Any] = []
        self.allowed = threading.Semaphore(0)
        self.runs_ahead = False
        self.on_launch: Callable[[], None] = lambda: None

    def submit(self, request: GenerationRequest) -> None:
        if request.prompt == [0]:
            raise unavailable("too many requests wait", 7)
        self.open[request.id] = request

    def cancel(self, request_id: str) -> None:
        if request_id in self.open and request_id not in self.cancelled:
            self.cancelled.append(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.open)

    @property
    def is_ahead(self) -> bool:
        return self.runs_ahead and self.has_work

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        self.on_launch()
        if on_launched is not None:
            on_launched()
        self.allowed.acquire()
        outputs: Any = [
            TokenOutput(one, 0, [], finish_reason=FinishReason.CANCELLED) for one in self.cancelled
        ]
        if not outputs and self.steps:
            outputs = self.steps.pop(0)
        if isinstance(outputs, Exception):
            self.open.clear()
            raise outputs
        for output in outputs:
            if output.finish_reason is not None:
                self.num_ended[output.request_id] = self.num_ended.get(output.request_id, 0) + 1
                if self.num_ended[output.request_id] == self.open[output.request_id].parameters.n:
                    del self.open[output.request_id]
        return list(outputs)

    def load(self) -> EngineLoad:
        return EngineLoad(len(self.open), 0, 0.0, 0, 0, 0)


class RecordingRuntime:
    def __init__(self) -> None:
        self.sent: list[tuple[int, WorkResponse | None, bool]] = []
        self.news = threading.Condition()
        self.paused: set[int] = set()
        self.cancelled: set[int] = set()
        self.logs: list[str] = []
        self.is_held = False

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        with self.news:
            self.sent += responses
            self.news.notify_all()

    def is_paused(self, handle: int) -> bool:
        return handle in self.paused

    def hold_work(self, is_held: bool) -> None:
        self.is_held = is_held

    def is_cancelled(self, handle: int) -> bool:
        return handle in self.cancelled

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        self.logs.append(message)

    def metric(self, operation: MetricOperation) -> float:
        return 1.0

    def wait(self, count: int) -> list[tuple[int, WorkResponse | None, bool]]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.sent) >= count, WAIT_S), self.sent
            return self.sent


class TextFormat:
    is_streamed = True

    def encode(self, progress: Progress) -> list[Tensor]:
        return [text_tensor("text", [piece.text for piece in progress.pieces])]


class Bench:
    def __init__(self) -> None:
        self.is_started = False
        self.engine = ScriptedEngine()
        self.runtime = RecordingRuntime()
        model = OpenModel(self.engine, None, None, 64, 100, 4, 16, 10, "scripted")  # type: ignore[arg-type]
        metrics = EngineMetrics(self.runtime, model, "m", 1)  # type: ignore[arg-type]
        self.host = EngineHost(model, self.runtime, metrics)  # type: ignore[arg-type]

    def submit(self, handle: int, prompt: int = 5, n: int = 1) -> None:
        request = GenerationRequest(
            id=str(handle), prompt=[prompt], parameters=SamplingParameters(n=n)
        )
        self.host.submit(request, PendingResponse(handle, TextFormat(), n))

    def step(self, *outputs: TokenOutput) -> None:
        self.let(list(outputs))

    def let(self, step: list[TokenOutput] | Exception) -> None:
        self.engine.steps.append(step)
        self.engine.allowed.release()
        self.start()

    def start(self) -> None:
        if not self.is_started:
            self.is_started = True
            self.host.start()

    def close(self) -> None:
        self.start()
        self.engine.open.clear()
        self.engine.allowed.release(100)
        self.host.stop(WAIT_S)
        assert not self.host.is_running()


@pytest.fixture
def bench() -> Any:
    """Starts the host with the first step, so that everything submitted before is part of it."""
    one = Bench()
    yield one
    one.close()


def text(response: WorkResponse | None) -> list[bytes]:
    assert response is not None
    return [bytes(element) for element in response.outputs[0].as_numpy().tolist()]


def gained(handle: int, text: str, end: FinishReason | None = None, index: int = 0) -> TokenOutput:
    return TokenOutput(str(handle), index, [1], text, finish_reason=end, num_prompt_tokens=1)


def test_sends_one_message_per_step_and_marks_the_last_one_final(bench: Bench) -> None:
    bench.submit(1)
    bench.submit(2)
    bench.step(gained(1, "a"), gained(2, "x"))
    bench.step(gained(1, "b", FinishReason.STOP), gained(2, "y", FinishReason.LENGTH))
    sent = bench.runtime.wait(4)
    assert [
        (handle, text(response), is_final) for handle, response, is_final in sent if handle == 1
    ] == [
        (1, [b"a"], False),
        (1, [b"b"], True),
    ]


def test_a_request_that_is_finished_by_another_ends_without_an_error(bench: Bench) -> None:
    bench.submit(1)
    bench.submit(2)
    bench.step(gained(1, "a"), gained(2, "x"))
    bench.runtime.wait(2)
    bench.runtime.paused.add(1)
    bench.step(gained(1, "b"))
    bench.host.finish("1")
    bench.host.finish("nobody")
    bench.let([])
    (ended,) = [one for one in bench.runtime.wait(3) if one[2]]
    assert (ended[0], text(ended[1])) == (1, [b"b"])
    assert ended[1] is not None
    assert ended[1].error is None


def test_a_slow_reader_gets_the_missed_text_in_one_piece(bench: Bench) -> None:
    bench.submit(1)
    bench.runtime.paused.add(1)
    bench.step(gained(1, "a"))
    bench.step(gained(1, "b"))
    bench.step(gained(1, "c", FinishReason.STOP))
    assert [(text(response), is_final) for _, response, is_final in bench.runtime.wait(1)] == [
        ([b"abc"], True)
    ]


def test_the_response_is_final_when_all_completions_have_ended(bench: Bench) -> None:
    bench.submit(1, n=2)
    bench.step(gained(1, "a", FinishReason.STOP), gained(1, "b", index=1))
    bench.step(gained(1, "c", FinishReason.STOP, index=1))
    assert [(text(response), is_final) for _, response, is_final in bench.runtime.wait(2)] == [
        ([b"a", b"b"], False),
        ([b"c"], True),
    ]


def test_a_cancelled_request_leaves_the_engine(bench: Bench) -> None:
    bench.submit(1)
    bench.step(gained(1, "a"))
    bench.runtime.wait(1)
    bench.runtime.cancelled.add(1)
    bench.engine.allowed.release(2)
    (_, response, is_final) = bench.runtime.wait(2)[1]
    assert is_final
    assert response is not None
    assert response.error is not None
    assert response.error.code == "CANCELLED"


def test_a_request_that_the_engine_rejects_gets_the_error(bench: Bench) -> None:
    bench.submit(1, prompt=0)
    bench.start()
    (handle, response, is_final) = bench.runtime.wait(1)[0]
    assert (handle, is_final) == (1, True)
    assert response is not None
    assert response.error is not None
    assert (response.error.code, response.error.retry_after_s) == ("UNAVAILABLE", 7)


def test_a_failing_step_fails_the_open_requests_and_the_engine_continues(bench: Bench) -> None:
    bench.submit(1)
    bench.let(RuntimeError("out of luck"))
    (_, response, is_final) = bench.runtime.wait(1)[0]
    assert is_final
    assert response is not None
    assert response.error is not None
    assert "out of luck" in response.error.message
    bench.submit(2)
    bench.step(gained(2, "fine", FinishReason.STOP))
    assert text(bench.runtime.wait(2)[1][1]) == [b"fine"]


def test_a_lost_device_ends_the_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    bench.submit(1)
    bench.let(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert ended.wait(WAIT_S)
    assert bench.runtime.wait(1)[0][2]


def test_tokens_are_sent_once_and_after_the_next_launch(bench: Bench) -> None:
    seen: list[int] = []
    bench.engine.runs_ahead = True
    bench.engine.on_launch = lambda: seen.append(len(bench.runtime.sent))
    bench.submit(1)
    bench.step(gained(1, "a"))
    bench.step(gained(1, "b"))
    bench.step(gained(1, "c", FinishReason.STOP))
    assert [(text(response), is_final) for _, response, is_final in bench.runtime.wait(3)] == [
        ([b"a"], False),
        ([b"b"], False),
        ([b"c"], True),
    ]
    assert seen == [0, 0, 1], "each launch precedes sending the outputs of the step before it"


def test_the_gate_is_closed_while_a_step_is_launched(bench: Bench) -> None:
    bench.engine.runs_ahead = True
    passed, is_waiting = threading.Event(), threading.Event()

    def pass_gate() -> None:
        is_waiting.set()
        bench.host.gate.wait()
        passed.set()

    other = threading.Thread(target=pass_gate)
    was_passed: list[bool] = []

    def launch() -> None:
        assert bench.runtime.is_held
        other.start()
        assert is_waiting.wait(WAIT_S)
        was_passed.append(passed.wait(0.05))
        bench.engine.on_launch = lambda: None

    bench.engine.on_launch = launch
    bench.submit(1)
    bench.step(gained(1, "a", FinishReason.STOP))
    assert passed.wait(WAIT_S)
    other.join()
    assert was_passed == [False]
    assert not bench.runtime.is_held


def test_outputs_of_earlier_steps_are_sent_before_the_error_of_a_failing_step(bench: Bench) -> None:
    bench.engine.runs_ahead = True
    bench.submit(1)
    bench.step(gained(1, "a"))

    def fail() -> None:
        if bench.engine.steps == [failure]:
            bench.engine.steps.clear()
            bench.engine.open.clear()
            raise failure

    failure = RuntimeError("out of luck")
    bench.engine.on_launch = fail
    bench.let(failure)
    (_, first, _), (_, second, is_final) = bench.runtime.wait(2)
    assert text(first) == [b"a"]
    assert is_final
    assert second is not None
    assert second.error is not None
    bench.host.gate.wait()


def test_the_fast_path_of_a_token_equals_the_full_path() -> None:
    format = TensorFormat(None, True, [], "", 1, False)  # type: ignore[arg-type]
    fast, full = PendingResponse(1, format, 1, format.text_encoder), PendingResponse(1, format, 1)
    for output in (
        gained(1, "a"),
        gained(1, ""),
        gained(1, "b\u00e9"),
        gained(1, "c"),
        gained(1, "d", FinishReason.LENGTH),
    ):
        encoded = []
        for pending in (fast, full):
            tensors = pending.encode_directly(output)
            if tensors is None:
                pending.add(output)
                tensors = pending.flush()
            encoded.append(tensors)
        assert encoded[0] == encoded[1]
    assert (fast.num_output_tokens, fast.num_prompt_tokens, fast.is_finished) == (5, 1, True)


@pytest.mark.parametrize(
    "format",
    [
        TensorFormat(None, True, ["text_output"], "", 1, False),  # type: ignore[arg-type]
        TensorFormat(None, True, [], "what was asked", 1, False),  # type: ignore[arg-type]
        TensorFormat(None, True, [], "", 2, False),  # type: ignore[arg-type]
        TensorFormat(None, True, [], "", 1, True),  # type: ignore[arg-type]
        TensorFormat(None, False, [], "", 1, False),  # type: ignore[arg-type]
    ],
)
def test_only_plain_streams_have_a_fast_path(format: TensorFormat) -> None:
    assert format.text_encoder is None
