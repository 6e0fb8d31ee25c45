"""A copy of a model: its life, in one worker process after the other. It starts, comes back when it
dies, ever later, and stops.

In:  batches from a scheduler. Out: responses, by message; `on_free` when it can take another batch.
     What it does while it lives is done by its parts, which look at it for what they have in
     common: `Execution` sends batches, `Answers` hands out what comes back, `Lending` lends it to a
     model that calls it, `Heartbeat` knows whether it is well.
Invariant: every request that was handed over gets exactly one final response, from the model or,
           when its process ends, from here.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Callable

from naiad import log
from naiad.core.clock import Clock
from naiad.core.request import InferRequest
from naiad.core.statistics import ModelStatistics
from naiad.core.work import LoadArguments
from naiad.errors import NaiadError, internal
from naiad.instances.call_graph import OutgoingCall
from naiad.instances.calls import Calls, Services
from naiad.instances.execution import Execution
from naiad.instances.heartbeat import Heartbeat
from naiad.instances.instance_plan import InstancePlan, Permit
from naiad.instances.lease import Lease
from naiad.instances.lending import Lending
from naiad.instances.open_work import OpenWork
from naiad.instances.responses import Answers
from naiad.instances.restart import Restarts
from naiad.instances.template_process import Templates
from naiad.instances.warmup import run_sample
from naiad.instances.worker_process import WorkerProcess, describe_status
from naiad.ipc.messages import (
    CallFlow,
    CancelCall,
    Control,
    DirectCalls,
    Executed,
    LogLine,
    Metric,
    Pong,
    Response,
    Responses,
    Returned,
    StartCall,
    ToServer,
)
from naiad.shm.arena import Arena

ASYNC_MAX_BATCHES = 64
"""How many batches an instance with a coroutine `execute` works on at once."""


class State(enum.Enum):
    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    """Died; a new process is on its way."""
    STOPPED = "stopped"


class Instance:
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
        self._permit = permit
        if permit is not None:
            permit.offer = self._on_offer
        self._templates = templates
        self._plan = plan
        self.arguments = arguments
        self._arena = arena
        self._statistics = statistics
        self._services = services
        self.name = arguments.instance_name
        self.state = State.NEW
        self.on_free: Callable[[Instance], None] = lambda instance: None
        self.on_state: Callable[[Instance], None] = lambda instance: None
        self.observers: list[Callable[[], None]] = []
        """Called before `on_state`."""
        self.on_idle: Callable[[Instance], None] = lambda instance: None
        self.max_batches = 1
        self.num_batches = 0
        self.is_lendable = False
        """Its scheduler asks no more than that it is free."""
        self.is_latest = True
        """No later version of the model serves."""
        self.lease: Lease | None = None
        self.process: WorkerProcess | None = None
        self.calls: Calls | None = None
        """Of the process that it has now."""
        self._restarts = Restarts(plan.restarts)
        self._restarting: asyncio.Task[None] | None = None
        self.last_end = ""
        """How its process ended the last time, in words."""
        work = self._work = OpenWork()
        self._execution = Execution(self, plan, work, clock, statistics, services.busy_poll, permit)
        self._lending = Lending(self, plan, work, statistics, has_permit=permit is not None)
        self._heartbeat = Heartbeat(self, clock)
        answers = Answers(self, plan, work, self._execution, statistics)
        # Hot: not wrapped in methods of this class, which would be a call more for each batch.
        self.execute = self._execution.execute
        self._on_executed, self._on_response = answers.on_executed, answers.on_response
        self._open, self._abandoned = work.requests, work.abandoned

    # What a scheduler looks at.

    @property
    def is_free(self) -> bool:
        if (
            self.state is not State.READY
            or self.num_batches >= self.max_batches
            or self.lease is not None
        ):
            return False
        return self._permit is None or self._permit.may_run()

    def _on_offer(self) -> None:
        self.on_free(self)

    @property
    def is_serving(self) -> bool:
        return self.state is State.READY

    @property
    def is_healthy(self) -> bool:
        """Ready, answering, and by its own account fit to serve."""
        return self.state is State.READY and self._heartbeat.is_good

    @property
    def is_broken(self) -> bool:
        """Died so often that it is only tried again now and then."""
        return self._restarts.is_broken

    @property
    def inflight(self) -> int:
        """Requests whose answer somebody still waits for."""
        return len(self._open) - len(self._abandoned)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    # Life.

    async def load(self, process: WorkerProcess | None = None) -> None:
        """Raises when the model cannot be loaded; nothing is left behind then. `process` is one
        that has configured the model."""
        self.state = State.STARTING
        try:
            await self._start(process)
        except BaseException:
            self.state = State.STOPPED
            await self._discard_process()
            raise

    async def _start(self, process: WorkerProcess | None) -> None:
        if process is None:
            process = WorkerProcess(asyncio.get_running_loop(), self.name, self._arena)
            await process.start(self._templates.get(self._plan.backend))
        self.process = process
        # Before the load: a model may create metrics or call others from `initialize`.
        self.calls = Calls(process.channel, self._services, self.name, self._work.find_trace, self)
        process.on_message = self._take
        process.on_end = self._on_process_end
        loaded = await process.load(self.arguments)
        self.max_batches = ASYNC_MAX_BATCHES if loaded.is_async else 1
        self._heartbeat.begin(has_ready_hook=loaded.has_ready_hook)
        for sample in self._plan.warmup:
            await run_sample(sample, self._plan.model_name, self._clock.now_ns(), self.execute)
        self.state = State.READY
        self.tell_state()
        self.on_free(self)

    async def stop(self, timeout_s: float) -> None:
        """The scheduler has drained it: finalize, then gone. Requests that are still open are
        failed."""
        self.state = State.STOPPED
        if self._permit is not None:
            self._permit.close()
        if self._restarting is not None:
            self._restarting.cancel()
        process = self.process
        if process is not None and not process.has_ended:
            await process.unload(timeout_s)
        await self._discard_process()

    async def _discard_process(self) -> None:
        if self.process is not None:
            await self.process.kill()
            self.process = None

    def _on_process_end(self) -> None:
        process, was_ready = self.process, self.state is State.READY
        if self.calls is not None:
            self.calls.close()
            self.calls = None
        if was_ready:
            self.state = State.DOWN
        error = internal(
            f"Failed to process the request(s) for model instance '{self.name}', message: its worker process ended"
        )
        self._lending.end()
        self._heartbeat.settle(False)
        self._execution.fail_open(error)
        if was_ready and process is not None:
            self.tell_state()
            self._restarting = asyncio.get_running_loop().create_task(self._restart(process))

    def tell_state(self) -> None:
        for observer in self.observers:
            observer()
        self.on_state(self)

    async def _restart(self, ended: WorkerProcess) -> None:
        """Until it serves again. Each attempt waits longer; a crash loop is tried only now and
        then."""
        reason = describe_status(await asyncio.shield(ended.exited)) if ended.pid else "ended"
        while self.state is State.DOWN:
            delay_s = self._restarts.next_delay_s(self._clock.now_ns())
            self.last_end = reason
            if self._restarts.is_broken:
                self.tell_state()
            log.error(f"worker of '{self.name}' {reason}; restarting in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            self._statistics.worker_restarts += 1
            try:
                await self._start(None)
                log.info(f"worker of '{self.name}' is back")
            except NaiadError as error:
                reason = f"failed to start: {error.message}"
                await self._discard_process()

    def _take(self, message: ToServer) -> None:
        match message:
            case Executed():
                self._on_executed(message)
            case Response():
                self._on_response(message)
            case Responses():
                for item in message.items:
                    self._on_response(item)
            case Pong():
                self._heartbeat.on_pong(message)
            case LogLine():
                log.emit(message.severity, message.message, message.file, message.line, self.pid)
            case Returned():
                self._lending.on_returned(message)
            case StartCall() | CancelCall() | CallFlow() | Metric() | Control() | DirectCalls():
                if self.calls is not None:
                    self.calls.take(message)

    def drop_slots(self, ids: list[int]) -> None:
        if self.process is not None and ids:
            self.process.channel.link.drop_slots(ids)

    # Health.

    @property
    def has_ready_hook(self) -> bool:
        return self._heartbeat.has_ready_hook

    def heartbeat(self, now_ns: int) -> None:
        """Asks an idle work loop whether it still turns. A busy one is not asked: busy is not
        dead."""
        self._heartbeat.beat(now_ns)

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        self._heartbeat.ask_ready(answer)

    # Lending it to a model that calls it.

    @property
    def is_lent(self) -> bool:
        return self.lease is not None

    @property
    def may_borrow(self) -> bool:
        return self._lending.may_borrow

    def lend(
        self, batch_size: int, is_at_rest: Callable[[], bool], on_over: Callable[[Lease], None]
    ) -> tuple[Lease, socket.socket] | None:
        return self._lending.lend(batch_size, is_at_rest, on_over)

    def recall(self, *, is_wanted: bool = False) -> None:
        """From now on no call goes past the server. It is free again when its worker has said
        so."""
        if self.lease is not None:
            self.lease.recall(is_wanted=is_wanted)

    # For the circles of calls (naiad.instances.call_graph).

    @property
    def model_name(self) -> str:
        return self._plan.model_name

    def executes(self, request: InferRequest) -> bool:
        return (self.lease is not None and self.lease.request is request) or self._work.has(request)

    def waits(self) -> list[list[OutgoingCall]]:
        """A call from a thread of the model's own is taken to be what its only batch waits for,
        unless the model is decoupled."""
        calls = list(self.calls.waiting()) if self.calls is not None else []
        batches = self._work.batches
        may_guess = len(batches) == 1 and not self._plan.is_decoupled
        waits = [
            [
                call
                for handles, call in calls
                if (not handles and may_guess) or not batch_handles.isdisjoint(handles)
            ]
            for batch_handles in (frozenset(batch.handles) for batch in batches.values())
        ]
        if self.lease is not None:
            waits.append([call for handles, call in calls if self.lease.id in handles])
        return waits
