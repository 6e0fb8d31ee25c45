"""The worker process: messages in, one backend, messages out. The only place where model code runs.

`run` is the work loop: configure, load, execute, ping, unload, in the order in which the server sends them. A backend whose
`execute` is a coroutine gets an event loop instead, on which further batches start while earlier ones await.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any

from naiad.backends.backend import Backend
from naiad.backends.custom_package import installed_backends
from naiad.core.tensor import REFERENCE, Tensor
from naiad.core.work import (
    CallRequest,
    ControlOperation,
    DirectCall,
    LoadArguments,
    MetricOperation,
    WorkError,
    WorkRequest,
    WorkResponse,
)
from naiad.errors import Code, NaiadError
from naiad.workers.direct_calls import BorrowedInstance, Form, LentInstance, form_of
from naiad.workers.host_policy import apply_host_policy
from naiad.workers.messages import (
    Answer,
    Borrow,
    CallEvent,
    CallFlow,
    Cancel,
    CancelCall,
    Configure,
    Configured,
    Control,
    DirectCalls,
    Execute,
    Executed,
    Failed,
    Flow,
    Load,
    Loaded,
    LogLine,
    Metric,
    Ping,
    Pong,
    Response,
    Responses,
    Returned,
    StartCall,
    Started,
    Unload,
)
from naiad.workers.worker_channel import Event, WorkerChannel

BACKENDS = {
    "identity": "naiad.backends.identity:IdentityBackend",
    "llm": "naiad.backends.llm:LlmBackend",
    "onnxruntime": "naiad.backends.onnx:OnnxBackend",
    "openvino": "naiad.backends.openvino:OpenvinoBackend",
    "python": "naiad.backends.python:PythonBackend",
    "pytorch": "naiad.backends.pytorch:PytorchBackend",
    "tensorrtllm": "naiad.backends.tensorrtllm:TensorrtllmBackend",
    "torch_aoti": "naiad.backends.torch_exported:PytorchBackend",
    "vllm": "naiad.backends.vllm:VllmBackend",
}
"""Backend name -> module:class. Imported only in templates and workers."""

EXTRAS = {"onnxruntime": "onnx", "openvino": "openvino", "torch": "pytorch"}
"""Package -> the extra of ours that installs it."""

TRACEBACK_LINES = 20
MAX_UNTOLD_CALLS = 64
"""Calls from worker to worker, before the server is told of them in the midst of a batch."""
MAX_UNFIT_FORMS = 256
CALL_HIGH_WATER = 32
CALL_LOW_WATER = 8
"""Responses to a BLS call that wait here for the model to take them, before the called model is held back."""


def find_backend(name: str) -> str | None:
    """module:class of a backend of ours or of an installed package."""
    return BACKENDS.get(name) or installed_backends().get(name)


def import_backend(name: str) -> type[Backend]:
    target = find_backend(name)
    if target is None:
        raise LookupError(f"no backend '{name}'")
    module, _, attribute = target.partition(":")
    try:
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise ModuleNotFoundError(f"{error.name} is not installed: pip install naiad[{EXTRAS[error.name]}]") from error
    return backend


class RunningCall:
    """A BLS call as its caller sees it (`naiad.backends.backend.Call`)."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self._number = number
        self._events: deque[tuple[WorkResponse | None, bool]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False
        self._is_paused = False

    def next(self) -> tuple[WorkResponse | None, bool]:
        self._worker.channel.wait_until(lambda: bool(self._events))
        return self._take()

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        loop = asyncio.get_running_loop()
        if loop is self._worker.loop:
            while not self._events:
                self._waiter = loop.create_future()
                await self._waiter
        else:
            # A loop of the user's own: nobody reads the channel for it, so a helper thread of that loop does.
            await loop.run_in_executor(None, self._worker.channel.wait_until, lambda: bool(self._events))
        return self._take()

    def cancel(self) -> None:
        if not self._is_over:
            self._worker.channel.send(CancelCall(self._number))

    def deliver(self, response: WorkResponse | None, is_final: bool) -> None:
        """Called by whichever thread read the message."""
        self._events.append((response, is_final))
        if len(self._events) >= CALL_HIGH_WATER and not self._is_paused and not is_final:
            self._is_paused = True
            self._worker.channel.send(CallFlow(self._number, True))
        if self._waiter is not None and self._worker.loop is not None:
            waiter, self._waiter = self._waiter, None
            self._worker.loop.call_soon_threadsafe(_wake, waiter)

    def _take(self) -> tuple[WorkResponse | None, bool]:
        response, is_final = self._events.popleft()
        if is_final:
            self._is_over = True
        elif self._is_paused and len(self._events) <= CALL_LOW_WATER:
            self._is_paused = False
            self._worker.channel.send(CallFlow(self._number, False))
        if response is not None:
            self._worker.channel.link.resolve(response.outputs)
        return response, is_final


class DoneCall:
    """A BLS call that went from worker to worker and has been answered."""

    def __init__(self, response: WorkResponse) -> None:
        self._response = response

    def next(self) -> tuple[WorkResponse | None, bool]:
        return self._response, True

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        return self._response, True

    def cancel(self) -> None:
        pass


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Worker:
    """Also the `Runtime` that the backend talks to."""

    def __init__(self, sock: socket.socket, backend: Backend) -> None:
        self.channel = WorkerChannel(sock)
        self.channel.on_event = self._on_event
        self.backend = backend
        self.loop: asyncio.AbstractEventLoop | None = None
        self._open: set[int] = set()
        self._cancelled: set[int] = set()
        self._paused: set[int] = set()
        self._calls: dict[int, RunningCall] = {}
        self._answers: dict[int, Answer] = {}
        self._lent: dict[int, LentInstance] = {}
        """By lease: those whose requests a response sender will answer."""
        self._form: tuple[int, Form] | None = None
        """The last call through the server whose form may be called directly, if the server says so; and that form."""
        self._borrowed: dict[Form, BorrowedInstance] = {}
        self._unfit: set[Form] = set()
        """Forms whose answers are too large to come directly."""
        self._untold: list[DirectCall] = []
        self._numbers = iter(range(1, 1 << 62))
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # The work loop.

    def run(self) -> None:
        self._send_started()
        while True:
            message = self.channel.next_work()
            match message:
                case Execute():
                    self._execute(message)
                case (lent, request):
                    self._execute_direct(lent, request)
                case Ping():
                    self.channel.send(Pong(message.number, self._is_ready()))
                case Configure():
                    self._configure(message.arguments)
                case Load():
                    if self._load(message.arguments):
                        asyncio.run(self._run_async())
                        return
                case Unload():
                    self._unload()
                    return

    def _send_started(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        try:
            self.channel.send_with_fd(Started(os.getpid()), pidfd)
        finally:
            os.close(pidfd)

    def _configure(self, arguments: LoadArguments) -> None:
        complete = getattr(self.backend, "complete_config", None)
        try:
            apply_host_policy(arguments)
            config = arguments.model_config if complete is None else complete(arguments)
        except BaseException as error:
            self._fail(error)
        else:
            self.channel.send(Configured(config))

    def _load(self, arguments: LoadArguments) -> bool:
        """True when the backend wants an event loop."""
        _name_process(arguments.instance_name)
        try:
            undone = apply_host_policy(arguments)
            if undone:
                self.log("WARNING", f"host policy of '{arguments.instance_name}' is only followed in part: {undone}", "host_policy.py", 0)
            self.backend.load(arguments, self)
        except BaseException as error:
            self._fail(error)
            return False
        is_async = bool(getattr(self.backend, "is_async", False))
        self.channel.send(Loaded(is_async, bool(getattr(self.backend, "has_ready_hook", False))))
        return is_async

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, NaiadError):
            work_error = WorkError(error.code.name, error.message)
        else:
            work_error = WorkError(Code.INTERNAL.name, f"{type(error).__name__}: {error}")
        self.channel.send(Failed(work_error, _last_lines(error)))

    def _is_ready(self) -> bool:
        check = getattr(self.backend, "is_ready", None)
        try:
            return check is None or bool(check())
        except Exception as error:
            self.log("ERROR", f"is_ready failed: {error}", "worker.py", 0)
            return False

    def _unload(self) -> None:
        try:
            self.backend.unload()
        except BaseException as error:
            self.log("ERROR", f"unload failed: {type(error).__name__}: {error}\n{_last_lines(error)}", "worker.py", 0)

    # Execution.

    def _take(self, message: Execute) -> list[WorkRequest]:
        requests = message.requests
        is_open = self._open.add
        for request in requests:
            is_open(request.handle)
            for tensor in request.inputs:
                if tensor.data.__class__ is REFERENCE:
                    self.channel.link.resolve(request.inputs)
                    break
        return requests

    def _execute(self, message: Execute) -> None:
        requests = self._take(message)
        handles = [request.handle for request in requests]
        input_end_ns = time.monotonic_ns()
        try:
            responses: Any = self.backend.execute(requests)
        except BaseException as error:
            responses = self._error_responses(error, len(handles))
        self._finish(message.batch, requests, handles, input_end_ns, responses)

    def _execute_direct(self, lent: LentInstance, request: WorkRequest | None) -> None:
        """For the worker that has borrowed this one's instance; None ends that."""
        if request is None:
            lent.end()
            self.channel.send(Returned(lent.lease))
            return
        handle = request.handle
        self._open.add(handle)
        lent.input_end_ns = time.monotonic_ns()
        self._lent[handle] = lent
        try:
            responses: Any = self.backend.execute([request])
        except BaseException as error:
            responses = self._error_responses(error, 1)
        if responses[0] is not None:
            self._answer_direct(handle, responses[0])

    def _answer_direct(self, handle: int, response: WorkResponse | None) -> None:
        lent = self._lent.pop(handle)
        self._close(handle)
        lent.answer(response, time.monotonic_ns())

    def _finish(
        self, batch: int, requests: list[WorkRequest], handles: list[int], input_end_ns: int, responses: list[WorkResponse | None]
    ) -> None:
        output_start_ns = time.monotonic_ns()
        answers: list[list[Tensor]] = []
        for handle, response in zip(handles, responses, strict=True):
            if response is not None:
                answers.append(response.outputs)
                self._close(handle)
        if self._untold:
            self._tell_calls()
        self.channel.send_last_use(Executed(batch, input_end_ns, output_start_ns, responses), answers, requests)

    def _error_responses(self, error: BaseException, count: int) -> list[WorkResponse | None]:
        """Backends word their own errors; what arrives here is a defect of the backend or an exit from inside the model."""
        self.log("ERROR", f"execute failed: {_last_lines(error)}", "worker.py", 0)
        return [WorkResponse(error=WorkError(Code.INTERNAL.name, f"{type(error).__name__}: {error}")) for _ in range(count)]

    # The same with an event loop.

    async def _run_async(self) -> None:
        loop = self.loop = asyncio.get_running_loop()
        stopped = loop.create_future()
        inbox = self.channel.reserve_for_loop()

        def on_readable() -> None:
            self.channel.poll()
            self._start_work(stopped)

        loop.add_reader(inbox, on_readable)
        self._start_work(stopped)
        try:
            await stopped
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            loop.remove_reader(inbox)
        self._unload()

    def _start_work(self, stopped: asyncio.Future[None]) -> None:
        assert self.loop is not None
        while self.channel.backlog:
            message = self.channel.backlog.popleft()
            match message:
                case Execute():
                    self._start_task(self._execute_async(message))
                case Ping():
                    self._start_task(self._answer_ping(message.number))
                case Unload():
                    if not stopped.done():
                        stopped.set_result(None)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        assert self.loop is not None
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_ping(self, number: int) -> None:
        check = getattr(self.backend, "is_ready_async", None)
        is_ready = await check() if check is not None else self._is_ready()
        self.channel.send(Pong(number, bool(is_ready)))

    async def _execute_async(self, message: Execute) -> None:
        requests = self._take(message)
        handles = [request.handle for request in requests]
        input_end_ns = time.monotonic_ns()
        try:
            answer = self.backend.execute(requests)
            responses = await answer if isinstance(answer, Awaitable) else answer
        except BaseException as error:
            responses = self._error_responses(error, len(handles))
        self._finish(message.batch, requests, handles, input_end_ns, responses)

    # What the backend may ask (`naiad.backends.backend.Runtime`).

    def respond(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        if handle in self._paused:
            # The reader cannot keep up: the model waits here, so nothing piles up on the way.
            self.channel.wait_until(lambda: handle not in self._paused)
        if handle not in self._open:
            return
        if handle in self._lent:
            self._respond_direct(handle, response, is_final)
            return
        if self._untold:
            self._tell_calls()
        if is_final:
            self._close(handle)
        self.channel.send(Response(handle, response, is_final), response.outputs if response is not None else None)

    def _respond_direct(self, handle: int, response: WorkResponse | None, is_final: bool) -> None:
        lent = self._lent[handle]
        if response is not None:
            lent.held = response
        if is_final:
            given, lent.held = lent.held, None
            self._answer_direct(handle, given)

    def respond_many(self, responses: list[tuple[int, WorkResponse | None, bool]]) -> None:
        items: list[Response] = []
        for handle, response, is_final in responses:
            if handle in self._lent:
                self._respond_direct(handle, response, is_final)
            elif handle in self._open:
                if is_final:
                    self._close(handle)
                items.append(Response(handle, response, is_final))
        if items:
            self.channel.send_many(Responses(items), [item.response.outputs for item in items if item.response is not None])

    def is_paused(self, handle: int) -> bool:
        return handle in self._paused

    def hold_work(self, is_held: bool) -> None:
        self.channel.hold(is_held)

    def is_cancelled(self, handle: int) -> bool:
        if handle not in self._cancelled and handle in self._open:
            self.channel.poll()
        return handle in self._cancelled

    def allocate(self, num_bytes: int) -> memoryview:
        return self.channel.link.arena.allocate(num_bytes)

    def call(self, request: CallRequest) -> RunningCall | DoneCall:
        form = form_of(request) if request.is_repeatable else None
        if form is None:
            request.is_repeatable = False
        elif form in self._borrowed:
            answered = self._ask_directly(form, request.request)
            if answered is not None:
                return DoneCall(answered)
        elif form in self._unfit:
            request.is_repeatable, form = False, None
        if not request.callers and self._lent:
            request.callers = list(self._lent)  # a thread of the model's own: taken to be what the request waits for
        number = self._next_number()
        if form is not None:
            self._form = number, form
        request.request.handle = number
        call = self._calls[number] = RunningCall(self, number)
        self.channel.send(StartCall(request), request.request.inputs)
        return call

    def _ask_directly(self, form: Form, request: WorkRequest) -> WorkResponse | None:
        borrowed = self._borrowed[form]
        answered = borrowed.ask(request)
        if borrowed.is_unfit:
            del self._borrowed[form]
            borrowed.close()
            if len(self._unfit) < MAX_UNFIT_FORMS:
                self._unfit.add(form)
        if answered is None:
            self._drop_borrowed()
            return None
        response, call = answered
        self._untold.append(call)
        if len(self._untold) >= MAX_UNTOLD_CALLS:
            self._tell_calls()
        return response

    def _take_borrowed(self, message: Borrow) -> None:
        """The call that it came of is still waited for, so nothing is being asked meanwhile."""
        borrowed = BorrowedInstance(message.lease, message.instance_name, self.channel.borrowed_fds.pop(message.lease))
        self._drop_borrowed()
        if self._form is None or self._form[0] != message.call:
            borrowed.close()  # the lender is told by that
            return
        earlier = self._borrowed.pop(self._form[1], None)
        if earlier is not None:
            earlier.close()
        self._borrowed[self._form[1]] = borrowed

    def _drop_borrowed(self) -> None:
        """Those that have been given back meanwhile."""
        for form, borrowed in list(self._borrowed.items()):
            if borrowed.is_over():
                borrowed.close()
                del self._borrowed[form]

    def _tell_calls(self) -> None:
        """Before the answers that they led to: whoever has those finds the calls in the statistics."""
        with self._lock:
            calls, self._untold = self._untold, []
        if calls:
            self.channel.send(DirectCalls(calls))

    def log(self, severity: str, message: str, file: str, line: int) -> None:
        self.channel.send(LogLine(severity, message, file, line))

    def metric(self, operation: MetricOperation) -> float:
        if operation.kind in ("increment", "set", "observe", "merge", "delete_family", "delete_metric"):
            self.channel.send(Metric(0, operation))
            return 0.0
        number = self._next_number()
        self.channel.send(Metric(number, operation))
        return self._wait_for_answer(number)

    def control(self, operation: ControlOperation) -> bool:
        number = self._next_number()
        self.channel.send(Control(number, operation))
        return bool(self._wait_for_answer(number))

    def _wait_for_answer(self, number: int) -> float:
        self.channel.wait_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if answer.error is not None:
            raise NaiadError(Code[answer.error.code], answer.error.message)
        return answer.value

    def _next_number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def _close(self, handle: int) -> None:
        self._open.discard(handle)
        if self._cancelled:
            self._cancelled.discard(handle)
        if self._paused:
            self._paused.discard(handle)

    def _on_event(self, message: Event) -> None:
        match message:
            case Cancel():
                self._cancelled.update(handle for handle in message.handles if handle in self._open)
                self._paused.difference_update(message.handles)
            case Flow():
                if not message.is_paused:
                    self._paused.discard(message.handle)
                elif message.handle in self._open and message.handle not in self._cancelled:
                    self._paused.add(message.handle)
            case CallEvent():
                call = self._calls.get(message.call)
                if message.is_final:
                    self._calls.pop(message.call, None)
                if call is not None:
                    call.deliver(message.response, message.is_final)
            case Answer():
                self._answers[message.question] = message
            case Borrow():
                self._take_borrowed(message)


def _last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def _name_process(name: str) -> None:
    """What `ps` and `top` show: which instance this process is."""
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(name[-15:])
    except OSError:
        pass


def reseed() -> None:
    """Forked siblings must not draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main(sock: socket.socket, backend_name: str) -> None:
    """Runs until the server says `Unload` or is gone; never returns."""
    reseed()
    status = 0
    try:
        Worker(sock, import_backend(backend_name)()).run()
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 1
    # Threads that the model left behind must not keep the process: unloading is an exit.
    os._exit(status)
