"""The worker process: messages in, one backend, messages out. The only place where model code runs.

`run` is the work loop: configure, load, execute, ping, unload, in the order in which the server
sends them. A backend with `is_async` gets an event loop instead, on which further batches start
while earlier ones await. What a backend may ask in return is in naiad.worker.runtime.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import io
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Coroutine
from typing import Any

from naiad.backends.backend import Backend
from naiad.core.tensor import REFERENCE, Tensor
from naiad.errors import Code, NaiadError
from naiad.ipc.messages import (
    Configure,
    Configured,
    Execute,
    Executed,
    Failed,
    Load,
    Loaded,
    Ping,
    Pong,
    Returned,
    Started,
    Unload,
)
from naiad.ipc.work import (
    LoadArguments,
    WorkError,
    WorkRequest,
    WorkResponse,
)
from naiad.shm.arena import SLOT_IDLE_NS
from naiad.worker.channel import WorkerChannel, all_inline
from naiad.worker.confinement import limit_memory
from naiad.worker.direct_calls import LentInstance
from naiad.worker.host_policy import apply_host_policy
from naiad.worker.import_backend import import_backend
from naiad.worker.ready_thread import start_ready_thread
from naiad.worker.runtime import WorkerRuntime

_OWN_CODE = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen importlib",
)
TRACEBACK_LINES = 20


class Worker:
    def __init__(self, sock: socket.socket, backend: Backend) -> None:
        self.channel = WorkerChannel(sock)
        self.runtime = WorkerRuntime(self.channel)
        self.backend = backend
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready_socket: socket.socket | None = None
        """For the readiness hook of a backend with `is_async`, until its event loop runs."""
        self._trim_due_ns = 0

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
                    self.channel.trim()
                    self.channel.send(Pong(message.number))
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
        pidfd, printed = os.pidfd_open(os.getpid()), redirect_output()
        try:
            self.channel.send_with_fds(Started(os.getpid()), [pidfd, printed])
        finally:
            os.close(pidfd)
            os.close(printed)

    def _configure(self, arguments: LoadArguments) -> None:
        try:
            limit_memory(arguments.max_memory_bytes)
            apply_host_policy(arguments)
            config = self.backend.complete_config(arguments)
        except BaseException as error:
            self._fail(error)
        else:
            self.channel.send(Configured(config))

    def _load(self, arguments: LoadArguments) -> bool:
        """True when the backend wants an event loop."""
        _name_process(arguments.instance_name)
        try:
            limit_memory(arguments.max_memory_bytes)
            not_applied = apply_host_policy(arguments)
            if not_applied:
                self.runtime.log(
                    "WARNING",
                    f"host policy of '{arguments.instance_name}' is only applied in part: "
                    f"{not_applied}",
                    "host_policy.py",
                    0,
                )
            self.backend.load(arguments, self.runtime)
        except BaseException as error:
            self._fail(error)
            return False
        # The objects that exist now live as long as the model. A full collection would traverse all
        # of them (80 ms with torch imported) during a request; frozen objects are skipped.
        gc.collect()
        gc.freeze()
        is_async = bool(self.backend.is_async)
        facts = self.backend.facts()
        if not self.backend.has_ready_hook:
            self.channel.send(Loaded(is_async, False, facts))
            return is_async
        ours, theirs = socket.socketpair()
        with theirs:
            self.channel.send_with_fds(Loaded(is_async, True, facts), [theirs.fileno()])
        if is_async:
            self._ready_socket = ours
        else:
            start_ready_thread(ours, self._is_ready)
        return is_async

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, NaiadError):
            cause = error.__cause__
            details = error.details
            if cause is not None and str(cause) not in error.message:
                details = details or last_lines(cause)
            self.channel.send(Failed(WorkError.of(error), details))
            return
        work_error = WorkError(Code.INTERNAL.name, f"{type(error).__name__}: {error}")
        self.channel.send(Failed(work_error, last_lines(error)))

    def _is_ready(self) -> bool:
        """Called in the thread of the readiness hook."""
        try:
            if self.loop is None:
                return bool(self.backend.is_ready())
            on_loop = asyncio.run_coroutine_threadsafe(self._is_ready_async(), self.loop)
            return on_loop.result()
        except Exception as error:
            self.runtime.log("ERROR", f"is_ready failed: {error}", "worker.py", 0)
            return False

    async def _is_ready_async(self) -> bool:
        return bool(await self.backend.is_ready_async())

    def _unload(self) -> None:
        try:
            self.backend.unload()
        except BaseException as error:
            self.runtime.log(
                "ERROR",
                f"unload failed: {type(error).__name__}: {error}\n{last_lines(error)}",
                "worker.py",
                0,
            )

    # Execution.

    def _open_requests(self, message: Execute) -> list[WorkRequest]:
        requests = message.requests
        for bundle in message.bundles:
            requests += bundle.requests()
        is_open = self.runtime.open.add
        for request in requests:
            is_open(request.handle)
            for tensor in request.inputs:
                if tensor.data.__class__ is REFERENCE:
                    self.channel.link.resolve(request.inputs)
                    break
        return requests

    def _execute(self, message: Execute) -> None:
        requests = self._open_requests(message)
        handles = [request.handle for request in requests]
        input_end_ns = time.monotonic_ns()
        try:
            responses: Any = self.backend.execute(requests)
        except BaseException as error:
            responses = self._error_responses(error, len(handles))
        self._finish(message.batch, requests, handles, input_end_ns, responses)

    def _execute_direct(self, lent: LentInstance, request: WorkRequest | None) -> None:
        """Executes a request of the worker that has borrowed this one's instance; None ends the
        loan."""
        if request is None:
            lent.end()
            self.channel.send(Returned(lent.lease))
            return
        handle = request.handle
        self.runtime.open.add(handle)
        lent.input_end_ns = time.monotonic_ns()
        self.runtime.lent[handle] = lent
        try:
            responses: Any = self.backend.execute([request])
        except BaseException as error:
            responses = self._error_responses(error, 1)
        if responses[0] is not None:
            self.runtime.end_direct(handle, responses[0])

    def _finish(
        self,
        batch: int,
        requests: list[WorkRequest],
        handles: list[int],
        input_end_ns: int,
        responses: list[WorkResponse | None],
    ) -> None:
        output_start_ns = time.monotonic_ns()
        if output_start_ns > self._trim_due_ns:
            # A worker that is never idle is never pinged.
            self._trim_due_ns = output_start_ns + SLOT_IDLE_NS
            self.channel.trim()
        outputs: list[list[Tensor]] = []
        for handle, response in zip(handles, responses, strict=True):
            if response is not None:
                outputs.append(response.outputs)
                self.runtime.close(handle)
        if self.runtime.calls.unreported:
            self.runtime.calls.report()
        is_inline = all_inline(outputs)
        message = Executed(batch, input_end_ns, output_start_ns, responses, is_inline)
        try:
            self.channel.send_last_use(message, outputs, requests, is_inline=is_inline)
        except NaiadError as error:
            failed = [
                None if response is None else WorkResponse(error=WorkError.of(error))
                for response in responses
            ]
            self.channel.send(Executed(batch, input_end_ns, output_start_ns, failed))

    def _error_responses(self, error: BaseException, count: int) -> list[WorkResponse | None]:
        """A backend turns the errors of its model into responses. An exception that arrives here is
        a defect of the backend, or an exit from inside the model."""
        self.runtime.log("ERROR", f"execute failed: {last_lines(error)}", "worker.py", 0)
        return [
            WorkResponse(error=WorkError(Code.INTERNAL.name, f"{type(error).__name__}: {error}"))
            for _ in range(count)
        ]

    # The work loop of a backend with `is_async`.

    async def _run_async(self) -> None:
        loop = self.loop = self.runtime.calls.loop = asyncio.get_running_loop()
        stopped = loop.create_future()
        inbox = self.channel.reserve_for_loop()

        def on_readable() -> None:
            self.channel.poll()
            self._start_work(stopped)

        loop.add_reader(inbox, on_readable)
        if self._ready_socket is not None:
            start_ready_thread(self._ready_socket, self._is_ready)
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
                    self.channel.trim()
                    self.channel.send(Pong(message.number))
                case Unload():
                    if not stopped.done():
                        stopped.set_result(None)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        assert self.loop is not None
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute_async(self, message: Execute) -> None:
        requests = self._open_requests(message)
        handles = [request.handle for request in requests]
        input_end_ns = time.monotonic_ns()
        try:
            result = self.backend.execute(requests)
            responses = await result if isinstance(result, Awaitable) else result
        except BaseException as error:
            responses = self._error_responses(error, len(handles))
        self._finish(message.batch, requests, handles, input_end_ns, responses)


def last_lines(error: BaseException) -> str:
    """Returns the traceback, without the frames of Naiad before the first one of the model. A
    SyntaxError of the model has none of the model's, and shows the line itself."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        entry = entry.tb_next
    if entry is None and not isinstance(error, SyntaxError):
        entry = error.__traceback__
    lines = "".join(traceback.format_exception(type(error), error, entry)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def _name_process(name: str) -> None:
    """Makes `ps` and `top` show which instance this process is."""
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(name[-15:])
    except OSError:
        pass


def redirect_output() -> int:
    """Makes stdout and stderr a pipe, and returns the end that the server reads: lines of a model
    must not look like lines of the server."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)
    # What a model prints before it crashes must not be lost.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return reader


def reseed() -> None:
    """Workers forked from one template must not draw the same random numbers."""
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
    # Threads that the model left behind must not keep the process alive.
    os._exit(status)
