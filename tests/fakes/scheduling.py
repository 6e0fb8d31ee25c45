"""Stand-ins that tests drive by hand: a clock that is advanced, an instance that responds when
told."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from naiad.core.bundle import Queued
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.errors import internal
from naiad.instances.executor import Executor, InstanceObserver
from naiad.instances.lease import Lease, LeaseNumbers
from naiad.ipc.work import ControlOperation
from naiad.metrics.operation import MetricOperation


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback
        """None after `cancel`: as in asyncio, a cancelled timer refers to nothing."""

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    def __init__(self) -> None:
        self._now_ns = 1_000_000_000
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self._soon: list[Callable[[], None]] = []
        self._order = itertools.count()
        self.num_yields = 0
        self.on_yield: Callable[[], None] = lambda: None

    def now_ns(self) -> int:
        return self._now_ns

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (when_ns, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> object:
        self._soon.append(callback)
        return None

    def yield_cpu(self) -> None:
        self.num_yields += 1
        self.on_yield()

    @property
    def is_due(self) -> bool:
        """A callback waits for the next turn."""
        return bool(self._soon)

    def turn_once(self) -> None:
        """One turn of the loop that leaves what its callbacks ask for to the next one."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def turn(self) -> None:
        """One turn of the loop: what was asked for soon."""
        while self._soon:
            self._soon.pop(0)()

    def advance_s(self, seconds: float) -> None:
        self.advance(int(seconds * 1e9))

    def skip(self, ns: int) -> None:
        """Time passes and the loop does not run."""
        self._now_ns += ns

    def advance(self, ns: int) -> None:
        """Timers fire one by one, each at its own time."""
        end_ns = self._now_ns + ns
        self.turn()
        while self._timers and self._timers[0][0] <= end_ns:
            when_ns, _, timer = heapq.heappop(self._timers)
            self._now_ns = max(self._now_ns, when_ns)
            if timer.callback is not None:
                timer.callback()
                self.turn()
        self._now_ns = end_ns


class FakeServices:
    """What models may ask of the server (naiad.instances.services.Services): nothing but metrics,
    which have no effect."""

    busy_poll = None
    find = None

    def __init__(self) -> None:
        self.lease_numbers = LeaseNumbers()

    def infer(self, job: Job) -> ResponseStream:
        raise AssertionError("no model calls another one here")

    def break_sequence(self, request: InferRequest) -> None:
        raise AssertionError("no ensemble runs here")

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        return False

    def apply_metric(self, owner: str, operation: MetricOperation) -> float:
        return 0.0

    def drop_metrics(self, owner: str) -> None:
        pass

    async def control(self, owner: str, operation: ControlOperation) -> bool:
        return False


class FakeLoan:
    """The loan of a FakeInstance; tests set `is_active`."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.is_active = False
        self.recalls: list[bool] = []
        """`is_wanted` of each recall."""

    def recall(self, *, is_wanted: bool = False) -> None:
        if self.is_active:
            self.recalls.append(is_wanted)


class FakeBorrower:
    """The calls of an instance that borrows another one."""

    def __init__(self, *, is_at_rest: bool = True) -> None:
        self.has_borrowed = False
        self.is_at_rest = is_at_rest
        self.ended: list[Lease] = []

    def on_lease_end(self, lease: Lease) -> None:
        self.ended.append(lease)


class FakeObserver:
    """Notes what an instance tells its scheduler."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.capacity = asyncio.Event()
        self.state_change = asyncio.Event()

    def on_capacity(self, instance: Executor) -> None:
        self.events.append("capacity")
        self.capacity.set()

    def on_idle(self, instance: Executor) -> None:
        self.events.append("idle")

    def on_state_change(self, instance: Executor) -> None:
        self.events.append("state")
        self.state_change.set()


class FakeInstance:
    """Collects batches; `finish` responds to the oldest one. `answer` makes the outputs of a
    response."""

    def __init__(self, max_batches: int = 1) -> None:
        self.batches: list[list[Job]] = []
        self.running: list[list[Job]] = []
        self.callbacks: list[Any] = []
        self.answer: Callable[[Job], list[Tensor]] = lambda job: []
        self.max_batches = max_batches
        self.is_serving = True
        self.outage = ""
        self.loan = FakeLoan()
        self.observer: InstanceObserver = FakeObserver()

    def attach(self, observer: InstanceObserver) -> None:
        self.observer = observer

    @property
    def is_free(self) -> bool:
        has_room = len(self.running) < self.max_batches
        return self.is_serving and has_room and not self.loan.is_active

    @property
    def inflight(self) -> int:
        return sum(len(batch) for batch in self.running)

    def execute(self, jobs: Sequence[Queued], on_executed: Any = None) -> None:
        """Gets no bundles: tests of those have real ways out and back."""
        batch = cast(list[Job], jobs)
        self.batches.append(batch)
        self.running.append(batch)
        self.callbacks.append(on_executed)

    def finish(self, *, rescheduled: tuple[str, ...] = (), is_answered: bool = True) -> list[Job]:
        """`rescheduled`: ids of requests that the model wants to see again. Not `is_answered`:
        `execute` has returned, the responses come later."""
        batch = self.running.pop(0)
        on_executed = self.callbacks.pop(0)
        again = [job for job in batch if job.request.id in rescheduled]
        if on_executed is not None:
            on_executed(batch, again)
        self.observer.on_capacity(self)
        for job in batch:
            if is_answered and not job.is_null and job not in again:
                self.respond(job)
        if not self.running:
            self.observer.on_idle(self)
        return batch

    def end_loan(self) -> None:
        self.loan.is_active = False
        self.observer.on_capacity(self)
        self.observer.on_idle(self)

    def respond(self, job: Job, is_final: bool = True) -> None:
        job.stream.put(InferResponse("m", "1", job.request.id, self.answer(job)), is_final)

    def die(self, outage: str = "") -> None:
        """Does what an instance does whose worker has ended: it fails what it had, then tells its
        scheduler."""
        batches, self.running, self.callbacks = self.running, [], []
        self.is_serving, self.outage = False, outage
        for job in (job for batch in batches for job in batch if not job.is_null):
            job.stream.fail(internal("its worker process ended"))
        self.observer.on_state_change(self)

    def come_back(self) -> None:
        self.is_serving, self.outage = True, ""
        self.observer.on_state_change(self)
        self.observer.on_capacity(self)

    @property
    def ids(self) -> list[list[str]]:
        return [[job.request.id for job in batch] for batch in self.batches]


def fake_job(
    id: str = "", batch_size: int = 1, shape: list[int] | None = None, **fields: Any
) -> Job:
    """`fields` are those of Job and of InferRequest."""
    tensor = Tensor("INPUT0", "FP32", [batch_size, *(shape or [4])], b"")
    of_job = {name: fields.pop(name) for name in list(fields) if name in Job.__struct_fields__}
    request = InferRequest("m", [tensor], id=id, batch_size=batch_size, **fields)
    return Job(request, ResponseStream(), batch_size=batch_size, **of_job)
