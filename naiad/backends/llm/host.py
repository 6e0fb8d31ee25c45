"""The engine's thread in a worker: requests from the work loop go in, steps are made, one message
per step goes out.

In:  `submit`, from the work loop's thread. Out: Runtime.respond_many, from the engine's thread.
Rules: only this thread touches the engine. While the device has work, the next step is launched
       before the tokens of the last one are handed out: nothing that can wait stands before a
       launch. Cancellations are seen before every step. A step that fails is the open requests'
       error; an engine that fails again and again, or a device that is lost, ends the process: the
       server restarts it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque

from naiad.backends.backend import Runtime
from naiad.backends.llm.gate import LaunchGate
from naiad.backends.llm.metrics import EngineMetrics
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.pending_response import Answer
from naiad.backends.llm.thread import EngineThread
from naiad.backends.llm.window import ArrivalWindow
from naiad.errors import NaiadError, cancelled, internal
from naiad.ipc.work import WorkError, WorkResponse
from naiad.llm.generation import FinishReason, GenerationRequest, TokenOutput

MAX_FAILED_STEPS = 3
"""In a row; then the process is not worth keeping."""
METRICS_INTERVAL_S = 0.25
SWITCH_INTERVAL_S = 0.001
"""How long another thread of the worker may keep the interpreter when a step's tokens are there:
Python's own 5 ms are a whole step."""
_CANCELLED = cancelled("the request was cancelled")


class EngineHost:
    def __init__(
        self,
        model: OpenModel,
        runtime: Runtime,
        metrics: EngineMetrics,
        thread: EngineThread | None = None,
    ) -> None:
        """`thread`: the one that opened the model."""
        self.model = model
        self._runtime = runtime
        self._metrics = metrics
        self._arrived = threading.Condition()
        self._intake: deque[tuple[GenerationRequest, Answer]] = deque()
        self._unwanted: deque[str] = deque()
        self._open: dict[str, Answer] = {}
        self._pending: list[TokenOutput] = []
        """Of the last step, not handed out yet."""
        self.gate = LaunchGate(runtime)
        self._is_stopping = False
        self._window = ArrivalWindow()
        self._num_failed_steps = 0
        self._metrics_due_s = 0.0
        self._thread = thread or EngineThread()

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._metrics.update()
        self._thread.start(self._run)

    def stop(self, timeout_s: float) -> None:
        with self._arrived:
            self._is_stopping = True
            self._arrived.notify()
        self._thread.join(timeout_s)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request: GenerationRequest, answer: Answer) -> None:
        """`request.id` must be unique among the open ones. Refusals are answered by the engine's
        thread too."""
        with self._arrived:
            self._intake.append((request, answer))
            self._arrived.notify()

    def cancel(self, request_id: str) -> None:
        """For cancellations that the server does not know of; it is answered as any other cancelled
        request is."""
        with self._arrived:
            self._unwanted.append(request_id)

    # The engine's thread.

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._take_in()
                self._drop_cancelled()
                if self.model.engine.has_work:
                    self._step()
                if not self._pending:
                    self._update_metrics()
            self._hand_out()
        except BaseException as error:
            # Nobody would ever answer: better a new process.
            self._runtime.log(
                "ERROR",
                f"the engine's thread failed: {type(error).__name__}: {error}",
                "llm_host.py",
                0,
            )
            os._exit(1)

    def _take_in(self) -> None:
        """Waits only when there is nothing to do: for a request, or for the time to show
        metrics."""
        with self._arrived:
            if not self.model.engine.has_work:
                self._await_arrivals()
            arrived, self._intake = self._intake, deque()
        refusals: list[tuple[int, WorkResponse | None, bool]] = []
        for request, answer in arrived:
            try:
                self.model.engine.submit(request)
            except NaiadError as error:
                refusals.append((answer.handle, error_response(error), True))
            except Exception as error:
                self._runtime.log(
                    "ERROR", f"submit failed: {type(error).__name__}: {error}", "llm_host.py", 0
                )
                refusals.append(
                    (
                        answer.handle,
                        error_response(internal(f"{type(error).__name__}: {error}")),
                        True,
                    )
                )
            else:
                self._open[request.id] = answer
            self._metrics.is_stale = True
        if refusals:
            self._runtime.respond_many(refusals)

    def _await_arrivals(self) -> None:
        window = self._window
        window.end_busy_period()
        while not self._intake and not self._is_stopping:
            wait_s = self._metrics_due_s - time.monotonic() if self._metrics.is_stale else None
            if wait_s is not None and wait_s <= 0:
                return
            self._arrived.wait(wait_s)
        if window.wait_s:
            self._arrived.wait_for(
                lambda: len(self._intake) >= window.num_expected or self._is_stopping, window.wait_s
            )

    def _drop_cancelled(self) -> None:
        while self._unwanted:
            self.model.engine.cancel(self._unwanted.popleft())
        is_cancelled = self._runtime.is_cancelled
        for request_id, answer in self._open.items():
            if is_cancelled(answer.handle):
                self.model.engine.cancel(request_id)

    def _step(self) -> None:
        num_open, start_s, engine = len(self._open), time.monotonic(), self.model.engine
        if engine.is_ahead:
            self.gate.close()
        else:
            self._hand_out()
        try:
            outputs = engine.step(self._on_launched)
        except Exception as error:
            self.gate.open()
            self._hand_out()
            self._on_failed_step(error)
            return
        self.gate.open()
        self._pending += outputs
        self._window.record_step(time.monotonic() - start_s, num_open)
        self._num_failed_steps = 0
        if not engine.is_ahead:
            self._hand_out()

    def _on_launched(self) -> None:
        self.gate.open()
        if self._pending:
            self._hand_out()
            self._update_metrics()

    def _hand_out(self) -> None:
        outputs, self._pending = self._pending, []
        touched: dict[str, Answer] = {}
        failures: dict[str, NaiadError] = {}
        responses: list[tuple[int, WorkResponse | None, bool]] = []
        find, is_paused = self._open.get, self._runtime.is_paused
        for output in outputs:
            answer = find(output.request_id)
            if answer is None:
                continue  # of a request that has failed already
            if not is_paused(answer.handle) and (tensors := answer.pass_on(output)) is not None:
                responses.append((answer.handle, WorkResponse(tensors), False))
                continue
            if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                failures.setdefault(output.request_id, output.error or _CANCELLED)
            else:
                answer.take(output)
            touched[output.request_id] = answer
        for request_id, answer in touched.items():
            if request_id in failures:
                self._close(request_id, answer)
                self.model.engine.cancel(request_id)
                responses.append((answer.handle, error_response(failures[request_id]), True))
            elif answer.is_finished:
                self._close(request_id, answer)
                responses.append((answer.handle, _response(answer), True))
            elif answer.form.is_streamed and not is_paused(answer.handle):
                response = _response(answer)
                if response is not None:
                    responses.append((answer.handle, response, False))
        if responses:
            self._runtime.respond_many(responses)

    def _close(self, request_id: str, answer: Answer) -> None:
        del self._open[request_id]
        self._metrics.record_request(answer.num_prompt_tokens, answer.num_output_tokens)

    def _on_failed_step(self, error: Exception) -> None:
        self._num_failed_steps += 1
        words = f"a step of the engine failed: {type(error).__name__}: {error}"
        self._runtime.log("ERROR", words, "llm_host.py", 0)
        failure = error_response(internal(words))
        for request_id in self._open:
            self.model.engine.cancel(request_id)
        self._runtime.respond_many(
            [(answer.handle, failure, True) for answer in self._open.values()]
        )
        self._open.clear()
        if self._num_failed_steps >= MAX_FAILED_STEPS or is_device_lost(error):
            os._exit(1)

    def _update_metrics(self) -> None:
        self._metrics.is_stale = self._metrics.is_stale or self.model.engine.has_work
        now_s = time.monotonic()
        if self._metrics.is_stale and now_s >= self._metrics_due_s:
            self._metrics_due_s = now_s + METRICS_INTERVAL_S
            self._metrics.update()
            self._metrics.is_stale = self.model.engine.has_work


def _response(answer: Answer) -> WorkResponse | None:
    outputs = answer.flush()
    return None if outputs is None else WorkResponse(outputs)


def error_response(error: NaiadError) -> WorkResponse:
    return WorkResponse(error=WorkError.of(error))


def is_device_lost(error: Exception) -> bool:
    """After these every further call to the GPU fails in the same way."""
    words = str(error)
    return (
        "CUDA error" in words
        or "device-side assert" in words
        or type(error).__name__ == "AcceleratorError"
    )
