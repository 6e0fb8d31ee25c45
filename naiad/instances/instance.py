"""A copy of a model, and its life in one worker process after the other: it starts, is restarted
when its process dies, and stops.

In:  batches from a scheduler. Out: responses to the streams of jobs; what happens to the
     instance, to its observers.
The parts do the work, and none of them refers to the instance: `InFlight` holds what the worker
has, `Execution` sends batches, `Responses` delivers what comes back, `Calls` serves what the worker
asks, `Loan` lends the instance to a model that calls it, `Heartbeat` knows whether it is healthy,
`ReadyHook` asks the model whether it is ready.
Invariant: every job that was handed over gets exactly one final response, from the model or,
           when its process ends, from here.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from naiad import log
from naiad.core.bundle import Queued
from naiad.core.clock import Clock, Timer
from naiad.core.health import InstanceHealth
from naiad.core.job import Job
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, internal
from naiad.instances.call_graph import OutgoingCall
from naiad.instances.calls import Calls
from naiad.instances.execution import Execution
from naiad.instances.executor import InstanceObserver, StateObserver
from naiad.instances.heartbeat import Heartbeat
from naiad.instances.in_flight import InFlight, OnExecuted
from naiad.instances.instance_plan import InstancePlan, Permit
from naiad.instances.load_limit import limit_load
from naiad.instances.loan import Loan
from naiad.instances.model_files import Snapshot, take_snapshot
from naiad.instances.observers import Observers
from naiad.instances.ready_hook import ReadyHook
from naiad.instances.responses import Responses
from naiad.instances.restart import Restarts
from naiad.instances.services import Services
from naiad.instances.template_process import TemplateEndedError, Templates
from naiad.instances.warmup import run_sample
from naiad.instances.worker_process import WorkerProcess, describe_status, unhealthy
from naiad.ipc.messages import (
    CallFlow,
    CancelCall,
    Control,
    DirectCalls,
    EncodedExecuted,
    EncodedGroup,
    Executed,
    LogLine,
    Metric,
    Pong,
    Response,
    ResponseGroup,
    Returned,
    StartCall,
    ToEncodingServer,
    ToServer,
)
from naiad.ipc.work import LoadArguments
from naiad.shm.arena import Arena

ASYNC_MAX_BATCHES = 64
"""How many batches an instance with a coroutine `execute` executes at once."""
FILES_CHECK_S = 1.0
"""How often an instance that cannot be restarted looks whether its files have changed."""
_ENCODED_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToEncodingServer)


class State(enum.Enum):
    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    """The process died and a new one is on its way."""
    STOPPED = "stopped"


class Instance:
    _process: WorkerProcess | None
    _calls: Calls | None
    _execution: Execution
    _responses: Responses
    """The last four belong to the current process."""

    def __init__(
        self,
        clock: Clock,
        templates: Templates,
        plan: InstancePlan,
        arguments: LoadArguments,
        arena: Arena,
        statistics: ModelStatistics,
        services: Services,
        permit: Permit | None = None,
    ) -> None:
        self._clock = clock
        self._templates = templates
        self._plan = plan
        self.arguments = arguments
        self._arena = arena
        self._statistics = statistics
        self._services = services
        self._permit = permit
        if permit is not None:
            permit.attach(self)
        self.name = arguments.instance_name
        self.state = State.NEW
        self.max_batches = 1
        self.facts: dict[str, str] = {}
        """What the model found out while it loaded. Empty before."""
        self.trouble = ""
        """Why an instance that is down does not serve, as text."""
        self._process = None
        self._calls = None
        self._folder = os.path.join(arguments.model_dir, str(arguments.model_version))
        self._needs_folder = False
        """The folder of the model was there when the instance was loaded."""
        self._restarts = Restarts(plan.restarts)
        self._restarting: asyncio.Task[None] | None = None
        self._down_since_ns = 0
        """When the last process ended."""
        self._wait_timer: Timer | None = None
        self._is_wait_over = False
        """The instance is down, and requests have waited long enough for it."""
        self._observers = Observers(self)
        self._in_flight = InFlight(services.busy_poll, permit)
        self.loan = Loan(
            plan,
            self._in_flight,
            self._observers,
            statistics,
            services.lease_numbers,
            has_permit=permit is not None,
        )
        self._heartbeat = Heartbeat(self.name, self._in_flight, self.loan, self._observers)
        self._ready_hook = ReadyHook(self.name, clock)

    # What a scheduler uses (naiad.instances.executor.Executor).

    @property
    def is_free(self) -> bool:
        if (
            self.state is not State.READY
            or len(self._in_flight.batches) >= self.max_batches
            or self.loan.lease is not None
        ):
            return False
        return self._permit is None or self._permit.may_run()

    @property
    def is_serving(self) -> bool:
        return self.state is State.READY

    @property
    def is_broken(self) -> bool:
        """The worker died so often that it is restarted only now and then, or its files are
        gone."""
        return self.state is State.DOWN and self._restarts.is_broken

    @property
    def outage(self) -> str:
        if self.is_broken:
            return f"worker of '{self.name}' {self.trouble}"
        if self.state is State.DOWN and self._is_wait_over:
            return f"worker of '{self.name}' {self.trouble} and is restarting"
        return ""

    @property
    def accepts_requests(self) -> bool:
        """The instance serves, or requests may wait until it serves again."""
        return self.state is State.READY or (self.state is State.DOWN and not self.outage)

    @property
    def inflight(self) -> int:
        return self._in_flight.num_awaited

    def attach(self, observer: InstanceObserver) -> None:
        self._observers.attach(observer)

    def execute(self, jobs: Sequence[Queued], on_executed: OnExecuted | None = None) -> None:
        self._execution.execute(jobs, on_executed)

    # What a model uses.

    def add_state_observer(self, observer: StateObserver) -> None:
        """The observer is told before the scheduler is."""
        self._observers.add_state_observer(observer)

    def remove_state_observer(self, observer: StateObserver) -> None:
        self._observers.remove_state_observer(observer)

    @property
    def is_healthy(self) -> bool:
        """The instance serves and responds."""
        return self.state is State.READY and self._heartbeat.is_healthy

    def executing_s(self, now_ns: int) -> float | None:
        """How long the oldest batch has been executing; None if none is."""
        start_ns = self._in_flight.oldest_start_ns
        return (now_ns - start_ns) / 1e9 if start_ns else None

    def health(self, now_ns: int) -> InstanceHealth:
        if self.state is State.DOWN:
            broken = "files missing" if self._restarts.lacks_files else "crash loop"
            state = broken if self.is_broken else "restarting"
            down_s = (now_ns - self._down_since_ns) / 1e9
            return InstanceHealth(self.name, state, None, down_s, self.trouble)
        if self.state is not State.READY:
            return InstanceHealth(self.name, self.state.value)
        executing_s = self.executing_s(now_ns)
        idle = "lent" if self.loan.is_active else "ready"
        state = self._heartbeat.complaint or ("executing" if executing_s is not None else idle)
        return InstanceHealth(self.name, state, executing_s)

    @property
    def has_ready_hook(self) -> bool:
        return self._ready_hook.is_there

    def heartbeat(self, now_ns: int) -> None:
        """Asks an idle worker whether its work loop still runs."""
        self._heartbeat.beat(now_ns)

    def ask_ready(self, on_readiness: Callable[[bool], None]) -> None:
        """Asks the model's own `is_ready`, if it has one. The callback may come before this
        returns."""
        if self.is_healthy and self._ready_hook.is_there:
            self._ready_hook.ask(on_readiness)
        else:
            on_readiness(self.is_healthy)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def drop_slots(self, ids: list[int]) -> None:
        if self._process is not None and ids:
            self._process.channel.link.drop_slots(ids)

    # Its life.

    async def load(self, process: WorkerProcess | None = None) -> None:
        """Raises when the model cannot be loaded; nothing is left behind then. `process` is one
        that has completed the config of the model."""
        self.state = State.STARTING
        try:
            self._needs_folder = await self._take_snapshot() is not None
            await self._start(process)
        except BaseException:
            self.state = State.STOPPED
            await self._discard_process()
            raise

    async def _start(self, process: WorkerProcess | None) -> None:
        async with limit_load(self.name, self._plan.load_timeout_s):
            if process is None:
                process = WorkerProcess(asyncio.get_running_loop(), self.name, self._arena)
                await process.start(self._templates, self._plan.backend)
            self._adopt_process(process)
            loaded = await process.load(self.arguments)
            self.max_batches = ASYNC_MAX_BATCHES if loaded.is_async else 1
            self.facts = loaded.facts
            for sample in self._plan.warmup:
                await run_sample(sample, self._plan.model_name, self._clock.now_ns(), self.execute)
        if process.has_ended:
            # It died after its last reply and before this task continued. Requests that are sent to
            # it would never end.
            raise internal("its worker process ended when it had loaded the model")
        self._end_wait()
        self.state = State.READY
        self._restarts.on_serving()
        self._heartbeat.begin(process.channel)
        ready_socket = process.pop_ready_socket()
        if ready_socket is not None:
            self._ready_hook.begin(ready_socket)
        self.loan.begin(process.channel, self._calls if self.max_batches == 1 else None)
        self._observers.notify_state_change()
        self._observers.notify_capacity()

    def _adopt_process(self, process: WorkerProcess) -> None:
        """Before the model is loaded: it may create metrics or call others while it loads."""
        channel, in_flight, observers = process.channel, self._in_flight, self._observers
        self._process = process
        self._calls = Calls(
            channel,
            self._services,
            self.name,
            in_flight.find_trace,
            self,
            in_flight.find_identity,
        )
        self._execution = Execution(
            process, self._plan, in_flight, observers, self._statistics, self._clock
        )
        self._responses = Responses(channel, self._plan, in_flight, observers, self._statistics)
        process.attach(self)
        if self._plan.keeps_encoded:
            channel.link.keep_encoded(_ENCODED_DECODER)

    async def stop(self, timeout_s: float) -> None:
        """The scheduler has drained the instance: the model is finalized, and the process ends.
        Jobs that are still in flight are failed."""
        self.state = State.STOPPED
        self._end_wait()
        self.loan.is_allowed = False
        self._heartbeat.end()
        self._ready_hook.end()
        if self._permit is not None:
            self._permit.close()
        if self._restarting is not None:
            self._restarting.cancel()
        process = self._process
        if process is not None and not process.has_ended:
            await process.unload(timeout_s)
        await self._discard_process()

    async def _discard_process(self) -> None:
        if self._process is not None:
            await self._process.kill()
            self._process = None

    async def _restart(self, ended: WorkerProcess) -> None:
        """Tries until the instance serves again. Each attempt waits longer; in a crash loop there
        is one only now and then, and one when the model's files have changed. The death of its
        template is none of its own."""
        reason = describe_status(await asyncio.shield(ended.exited)) if ended.pid else "ended"
        is_own_death = not ended.ended_with_template
        await self._discard_process()
        details = ""
        while self.state is State.DOWN:
            files = await self._take_snapshot()
            if files is None and self._needs_folder:
                files = await self._wait_for_files(reason)
            self.trouble = reason
            if is_own_death:
                delay_s = self._restarts.next_delay_s(self._clock.now_ns())
            else:
                delay_s = self._templates.restart_delay_s(self._plan.backend)
            if is_own_death and self._restarts.is_broken:
                self.trouble = f"crashes in a loop: it {reason}"
                self._observers.notify_state_change()
            log.error(
                f"{unhealthy(self.name)} Its worker {reason}; restarting in {delay_s:g} s", details
            )
            if await self._wait_for_change(files, delay_s):
                self._restarts.on_changed_files()
            self._statistics.worker_restarts += 1
            try:
                await self._start(None)
                log.info(f"worker of '{self.name}' is back")
            except Exception as error:  # Whatever it was, the next attempt may succeed.
                reason, details = _describe_failure(error)
                failed = self._process
                await self._discard_process()
                is_own_death = not isinstance(error, TemplateEndedError) and not (
                    failed is not None and failed.ended_with_template
                )

    async def _take_snapshot(self) -> Snapshot:
        return await asyncio.to_thread(take_snapshot, self._folder)

    async def _wait_for_files(self, reason: str) -> Snapshot:
        """Returns when the folder of the model is there again. An attempt without it could only
        fail."""
        self._restarts.on_missing_files()
        self.trouble = f"{reason} and cannot be restarted: the folder of the model is gone"
        self._observers.notify_state_change()
        log.error(
            f"worker of '{self.name}' {reason}, and the folder of the model is gone; restarting "
            "when it is back"
        )
        files = None
        while files is None:
            await asyncio.sleep(FILES_CHECK_S)
            files = await self._take_snapshot()
        log.info(f"the folder of the model of '{self.name}' is back")
        self._restarts.on_changed_files()
        return files

    async def _wait_for_change(self, files: Snapshot, limit_s: float) -> bool:
        """Waits for the limit, or until the model's files have changed and stay the same for a
        moment. Returns True if they have changed."""
        seen = files
        while limit_s > FILES_CHECK_S:
            await asyncio.sleep(FILES_CHECK_S)
            limit_s -= FILES_CHECK_S
            now = await self._take_snapshot()
            if now is not None and now != files and now == seen:
                return True
            seen = now
        await asyncio.sleep(limit_s)
        return False

    # What its process reports (naiad.instances.worker_process.WorkerListener).

    def on_worker_message(self, message: ToServer) -> None:
        match message:
            case Executed():
                self._responses.on_executed(message)
            case EncodedExecuted():
                self._responses.on_encoded(message)
            case Response():
                self._responses.on_response(message)
            case ResponseGroup():
                for item in message.items:
                    self._responses.on_response(item)
            case EncodedGroup():
                self._responses.on_encoded_group(message)
            case Pong():
                self._heartbeat.on_pong(message)
            case LogLine():
                log.emit(message.severity, message.message, message.file, message.line, self.pid)
            case Returned():
                self.loan.on_returned(message)
            case StartCall() | CancelCall() | CallFlow() | Metric() | Control() | DirectCalls():
                if self._calls is not None:
                    self._calls.on_message(message)

    def on_worker_end(self) -> None:
        process, was_ready = self._process, self.state is State.READY
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        if was_ready:
            self.state = State.DOWN
            self._begin_wait()
        error = internal(
            f"Failed to process the request(s) for model instance '{self.name}', message: its "
            "worker process ended"
        )
        self.loan.end()
        self._heartbeat.end()
        self._ready_hook.end()
        self._execution.fail_all(error)
        if was_ready and process is not None:
            self._observers.notify_state_change()
            self._restarting = asyncio.get_running_loop().create_task(self._restart(process))

    # How long requests wait for a worker that restarts.

    def _begin_wait(self) -> None:
        self._down_since_ns = self._clock.now_ns()
        self.trouble = "ended"
        wait_ns = int(self._plan.restarts.wait_s * 1e9)
        self._is_wait_over = not wait_ns
        if wait_ns:
            self._wait_timer = self._clock.call_at(
                self._down_since_ns + wait_ns, self._on_wait_over
            )

    def _on_wait_over(self) -> None:
        self._is_wait_over = True
        self._observers.notify_state_change()

    def _end_wait(self) -> None:
        self._is_wait_over = False
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None

    # What the rate limiter says (naiad.instances.instance_plan.PermitHolder).

    def on_permit(self) -> None:
        self._observers.notify_capacity()

    # Circles of calls (naiad.instances.call_graph.Waiter).

    @property
    def model_name(self) -> str:
        return self._plan.model_name

    @property
    def may_borrow(self) -> bool:
        """An instance that is lent itself does not borrow."""
        return (
            self.state is State.READY
            and not self.loan.is_active
            and self.max_batches == 1
            and not self._plan.is_decoupled
        )

    def executes(self, job: Job) -> bool:
        lease = self.loan.lease
        return (lease is not None and lease.job is job) or self._in_flight.has(job)

    def waits(self) -> list[list[OutgoingCall]]:
        """A call from a thread that the model started is assumed to be what its only batch waits
        for, unless the model is decoupled."""
        calls = list(self._calls.waiting()) if self._calls is not None else []
        batches = self._in_flight.batches
        may_guess = len(batches) == 1 and not self._plan.is_decoupled
        waits = [
            [
                call
                for handles, call in calls
                if (not handles and may_guess) or not batch_handles.isdisjoint(handles)
            ]
            for batch_handles in (frozenset(batch.handles) for batch in batches.values())
        ]
        lease = self.loan.lease
        if lease is not None:
            waits.append([call for handles, call in calls if lease.id in handles])
        return waits


def _describe_failure(error: Exception) -> tuple[str, str]:
    """Why a worker did not start, and the details for the log."""
    if not isinstance(error, NaiadError):
        return f"failed to start: {type(error).__name__}: {error}", ""
    first, _, rest = error.message.partition("\n")
    return f"failed to start: {first}", error.details or rest
