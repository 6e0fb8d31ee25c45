"""Runs the engine of a worker on its thread: accepts requests from the work loop, makes steps, and
sends one message per step.

In:  `submit`, from the work loop's thread. Out: Runtime.respond_many, from the engine's thread.
Rules: only the engine's thread uses the engine. While the device has work, the next step is
       launched before the tokens of the last one are sent: nothing that can wait delays a launch.
       Cancellations are checked before every step. A failed step fails all open requests. If steps
       fail repeatedly or the device is lost, the process ends and the server restarts it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque

from naiad.backends.backend import Runtime
from naiad.backends.llm.engine_thread import ArrivalWindow, EngineThread, LaunchGate
from naiad.backends.llm.metrics import EngineMetrics
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.pending_response import PendingResponse
from naiad.errors import NaiadError, cancelled, internal
from naiad.ipc.work import WorkError, WorkResponse
from naiad.llm.generation import FinishReason, GenerationRequest, TokenOutput
from naiad.llm.parallel.fault import RankLostError

MAX_FAILED_STEPS = 3
"""The process ends after this many consecutive failed steps."""
METRICS_INTERVAL_S = 0.25
SWITCH_INTERVAL_S = 0.001
"""How long another thread of the worker may keep the interpreter when a step's tokens have
arrived. Python's default of 5 ms is as long as a whole step."""
_CANCELLED = cancelled("the request was cancelled")


class EngineHost:
    def __init__(
        self,
        model: OpenModel,
        runtime: Runtime,
        metrics: EngineMetrics,
        thread: EngineThread | None = None,
    ) -> None:
        """`thread` is the one that opened the model."""
        self.model = model
        self._runtime = runtime
        self._metrics = metrics
        self._arrived = threading.Condition()
        self._intake: deque[tuple[GenerationRequest, PendingResponse]] = deque()
        self._finished_ids: deque[str] = deque()
        self._open: dict[str, PendingResponse] = {}
        self._unsent: list[TokenOutput] = []
        """Outputs of the last step that have not been sent yet."""
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

    def submit(self, request: GenerationRequest, pending: PendingResponse) -> None:
        """`request.id` must be unique among the open requests. The engine's thread sends the error
        if the engine rejects the request."""
        with self._arrived:
            self._intake.append((request, pending))
            self._arrived.notify()

    def finish(self, request_id: str) -> None:
        """Ends a request on behalf of another request; the server does not know of this. The final
        response has what was generated up to now."""
        with self._arrived:
            self._finished_ids.append(request_id)

    # The engine's thread.

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._submit_arrived()
                self._drop_cancelled()
                if self.model.engine.has_work:
                    self._step()
                if not self._unsent:
                    self._update_metrics()
            self._send_outputs()
        except BaseException as error:
            # Without this thread no request would ever get a response: a new process is better.
            self._runtime.log(
                "ERROR",
                f"the engine's thread failed: {type(error).__name__}: {error}",
                "host.py",
                0,
            )
            os._exit(1)

    def _submit_arrived(self) -> None:
        """Waits only if the engine has no work: for a request, or until metrics are due."""
        with self._arrived:
            if not self.model.engine.has_work:
                self._await_arrivals()
            arrived, self._intake = self._intake, deque()
        rejections: list[tuple[int, WorkResponse | None, bool]] = []
        for request, pending in arrived:
            try:
                self.model.engine.submit(request)
            except NaiadError as error:
                rejections.append((pending.handle, error_response(error), True))
            except Exception as error:
                self._runtime.log(
                    "ERROR", f"submit failed: {type(error).__name__}: {error}", "host.py", 0
                )
                failure = internal(f"{type(error).__name__}: {error}")
                rejections.append((pending.handle, error_response(failure), True))
            else:
                self._open[request.id] = pending
            self._metrics.is_stale = True
        if rejections:
            self._runtime.respond_many(rejections)

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
        while self._finished_ids:
            request_id = self._finished_ids.popleft()
            pending = self._open.get(request_id)
            if pending is not None:
                pending.is_ending = True
                self.model.engine.cancel(request_id)
        is_cancelled = self._runtime.is_cancelled
        for request_id, pending in self._open.items():
            if is_cancelled(pending.handle):
                self.model.engine.cancel(request_id)

    def _step(self) -> None:
        num_open, start_s, engine = len(self._open), time.monotonic(), self.model.engine
        if engine.is_ahead:
            self.gate.close()
        else:
            self._send_outputs()
        try:
            outputs = engine.step(self._on_launched)
        except Exception as error:
            self.gate.open()
            self._send_outputs()
            self._on_failed_step(error)
            return
        self.gate.open()
        self._unsent += outputs
        self._window.record_step(time.monotonic() - start_s, num_open)
        self._num_failed_steps = 0
        if not engine.is_ahead:
            self._send_outputs()

    def _on_launched(self) -> None:
        self.gate.open()
        if self._unsent:
            self._send_outputs()
            self._update_metrics()

    def _send_outputs(self) -> None:
        outputs, self._unsent = self._unsent, []
        touched: dict[str, PendingResponse] = {}
        failures: dict[str, NaiadError] = {}
        responses: list[tuple[int, WorkResponse | None, bool]] = []
        find, is_paused = self._open.get, self._runtime.is_paused
        for output in outputs:
            pending = find(output.request_id)
            if pending is None:
                continue  # the request has already failed
            if not is_paused(pending.handle):
                tensors = pending.encode_directly(output)
                if tensors is not None:
                    responses.append((pending.handle, WorkResponse(tensors), False))
                    continue
            if output.finish_reason is FinishReason.CANCELLED and pending.is_ending:
                pending.end()
            elif output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                failures.setdefault(output.request_id, output.error or _CANCELLED)
            else:
                pending.add(output)
            touched[output.request_id] = pending
        for request_id, pending in touched.items():
            if request_id in failures:
                self._close(request_id, pending)
                self.model.engine.cancel(request_id)
                responses.append((pending.handle, error_response(failures[request_id]), True))
            elif pending.is_finished:
                self._close(request_id, pending)
                responses.append((pending.handle, _response(pending), True))
            elif pending.format.is_streamed and not is_paused(pending.handle):
                response = _response(pending)
                if response is not None:
                    responses.append((pending.handle, response, False))
        if responses:
            self._runtime.respond_many(responses)

    def _close(self, request_id: str, pending: PendingResponse) -> None:
        del self._open[request_id]
        self._metrics.record_request(
            pending.num_prompt_tokens, pending.num_output_tokens, pending.num_longest
        )

    def _on_failed_step(self, error: Exception) -> None:
        self._num_failed_steps += 1
        message = f"a step of the engine failed: {type(error).__name__}: {error}"
        self._runtime.log("ERROR", message, "host.py", 0)
        failure = error_response(internal(message))
        for request_id in self._open:
            self.model.engine.cancel(request_id)
        self._runtime.respond_many(
            [(pending.handle, failure, True) for pending in self._open.values()]
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


def _response(pending: PendingResponse) -> WorkResponse | None:
    outputs = pending.flush()
    return None if outputs is None else WorkResponse(outputs)


def error_response(error: NaiadError) -> WorkResponse:
    return WorkResponse(error=WorkError.of(error))


def is_device_lost(error: Exception) -> bool:
    """True for errors after which every further step fails in the same way."""
    message = str(error)
    return (
        isinstance(error, RankLostError)
        or "CUDA error" in message
        or "device-side assert" in message
        or type(error).__name__ == "AcceleratorError"
    )
