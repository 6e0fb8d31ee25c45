"""Sequence batching: the jobs of a sequence go to the same instance, in order, one at a time.

In:  jobs whose request has a sequence id. Out: batches for instances, with control inputs and
     implicit state added.
A sequence owns a slot of one instance from its START until its END has been executed, it was idle
for too long, or one of its requests was refused or lost: a sequence with a gap would be another
sequence. A sequence that finds no slot waits in the backlog, in order of arrival.
Rules: a sequence never has two jobs executing (lane.py decides which sequences form a batch); when
       an instance dies, so do its sequences, because the model's memory of them is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Sequence as Listing
from functools import partial
from uuid import uuid4

import msgspec

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.core.job import Job
from naiad.core.request import SequenceKey
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics, failure_reason
from naiad.errors import NaiadError, cancelled, invalid_arg, unavailable, unsupported
from naiad.instances.executor import Executor
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.key_turns import key_of
from naiad.scheduling.ordering import Ordering
from naiad.scheduling.queue import RETRY_AFTER_S
from naiad.scheduling.scheduler import Resizable, SequenceKeeper, outage_error, stopping_error
from naiad.scheduling.sequence.controls import SequenceControls
from naiad.scheduling.sequence.implicit_state import ImplicitState
from naiad.scheduling.sequence.lane import DirectRule, Lane, Sequence
from naiad.scheduling.sequence.null_job import NullJobs
from naiad.scheduling.start_delay import NO_DELAY, StartDelay

MAX_STRING_ID_CHARS = 128
BROKEN_MESSAGE = "a request of this sequence was refused or lost; start the sequence again"


def conflict_message(id: int | str, model_name: str) -> str:
    """Triton's warning when a sequence starts again before it has ended."""
    return (
        f"sequence {id} for model '{model_name}' has a conflict. The previous sequence did not end "
        "before this sequence start. Previous sequence will be terminated early."
    )


class SequencePlan(msgspec.Struct, frozen=True):
    model_name: str
    direct: DirectRule | None
    """None for `oldest`."""
    slots_per_instance: int
    max_idle_ns: int
    rule: BatchRule
    """The batching rule of `oldest`; `direct` uses only what must be equal within a batch."""
    controls: SequenceControls
    state: ImplicitState
    outputs: list[str]
    """The outputs of the model, as clients see them."""
    is_iterative: bool = False
    """One job is a whole sequence: the model asks to see it again until it is done."""
    preserve_ordering: bool = False


class SequenceScheduler:
    def __init__(
        self,
        instances: Listing[Executor],
        plan: SequencePlan,
        clock: Clock,
        statistics: ModelStatistics,
        start_delay: StartDelay = NO_DELAY,
        max_queue_size: int = 0,
    ) -> None:
        """`max_queue_size` limits the sequences that wait for a slot; 0 means unlimited. No job of
        an accepted sequence is refused for load."""
        self._plan = plan
        self._start_delay = start_delay
        self._held: set[Lane] = set()
        """Lanes that execute nothing before enough requests wait."""
        self._max_queue_size = max_queue_size
        self._clock = clock
        self._statistics = statistics
        self._has_state = bool(plan.state.tensors)
        self._nulls = NullJobs(plan.controls, plan.state)
        self._ordering = Ordering() if plan.preserve_ordering else None
        self._lanes: list[Lane] = []
        self._lane_of: dict[Executor, Lane] = {}
        self._by_key: dict[SequenceKey, Sequence] = {}
        """Sequences whose last job has not come."""
        self._used_ids: set[int | str] = set()
        """The ids of these sequences as the model sees them."""
        self._backlog: dict[Sequence, None] = {}
        self._num_waiting = 0
        self._ids = itertools.count(1)
        self._is_dispatch_due = False
        self._idle_timer: Timer | None = None
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None
        for instance in instances:
            self._add_lane(instance)
        if start_delay.num_queued:
            self._held.update(self._lanes)

    def _add_lane(self, instance: Executor) -> None:
        lane = self._lane_of[instance] = Lane(instance, self._plan.slots_per_instance)
        self._lanes.append(lane)
        instance.attach(self)

    # Scheduler.

    def enqueue(self, job: Job) -> ResponseStream:
        sequence = self._sequence_for(job)
        stream = outer = job.stream
        if self._ordering is not None:
            outer = self._ordering.add(stream)
        now_ns = job.queue_start_ns = sequence.last_used_ns = self._clock.now_ns()
        self._num_waiting += 1
        self._statistics.pending_request_count += 1
        sequence.jobs.append(job)
        stream.on_cancel(partial(self._cancel, sequence, job))
        if job.request.sequence_end:
            self._forget(sequence)
        if sequence.lane is not None:
            sequence.lane.update(sequence, now_ns)
        elif not self._place(sequence):
            self._wait_in_backlog(sequence, job)
        self._dispatch_soon()
        return outer

    @property
    def sequences(self) -> SequenceKeeper:
        return self

    def has_sequence(self, key: SequenceKey) -> bool:
        return key in self._by_key

    def end_sequence(self, key: SequenceKey) -> None:
        sequence = self._by_key.get(key)
        if sequence is None:
            return
        self._forget(sequence)
        if sequence.is_idle:
            self._end(sequence)

    def break_sequence(self, key: SequenceKey) -> None:
        sequence = self._by_key.get(key)
        if sequence is not None:
            self._break(sequence)

    def _break(self, sequence: Sequence) -> None:
        """What executes has come before the gap, and gets its response."""
        self._forget(sequence)
        while sequence.jobs:
            self._refuse(sequence.jobs.popleft(), unavailable(BROKEN_MESSAGE, RETRY_AFTER_S))
        if sequence.is_idle:
            self._end(sequence)
        elif sequence.lane is not None:
            sequence.lane.update(sequence, self._clock.now_ns())

    def inflight(self) -> int:
        return self._num_waiting + sum(lane.instance.inflight for lane in self._lanes)

    async def stop(self) -> None:
        """Sequences that have begun may go on to their end, or until they are idle for too long."""
        self._is_stopping = True
        if self._held:
            self._dispatch_soon()
        while not self._is_drained():
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped
        if self._idle_timer is not None:
            self._idle_timer.cancel()  # it would keep this scheduler in memory until it fires

    def _is_drained(self) -> bool:
        return not self._by_key and not self.inflight()

    def _check_drained(self) -> None:
        """Wakes whoever waits until the scheduler, or one of its lanes, is empty."""
        if self._stopped is not None and not self._stopped.done() and self._is_drained():
            self._stopped.set_result(None)
        for lane in self._lanes:
            if (
                lane.left is not None
                and not lane.left.done()
                and not lane.num_used
                and not lane.instance.inflight
            ):
                lane.left.set_result(None)

    # Instances come and go.

    @property
    def resizable(self) -> Resizable:
        return self

    def add_instance(self, instance: Executor) -> None:
        self._add_lane(instance)
        self._place_from_backlog()

    def holds_sequences(self, instance: Executor) -> bool:
        return bool(self._lane_of[instance].num_used)

    async def remove_instance(self, instance: Executor) -> None:
        """The sequences in its slots go on to their end."""
        lane = self._lane_of[instance]
        lane.left = asyncio.get_running_loop().create_future()
        self._check_drained()
        await lane.left
        self._lanes.remove(lane)
        del self._lane_of[instance]

    # Which sequence a job belongs to.

    def _sequence_for(self, job: Job) -> Sequence:
        """Raises NaiadError; nothing has changed then."""
        request = job.request
        model_name, id = self._plan.model_name, request.sequence_id
        if job.batch_size > 1:
            raise invalid_arg(
                f"inference request to model '{model_name}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        if not id and self._plan.is_iterative:
            id = self._new_id()
            request.sequence_id, request.sequence_start = id, True
        if not id:
            raise invalid_arg(
                f"inference request to model '{model_name}' must specify a non-zero or non-empty "
                "correlation ID"
            )
        if isinstance(id, str) and len(id) > MAX_STRING_ID_CHARS:
            raise unsupported(
                f"string correlation ID cannot be longer than {MAX_STRING_ID_CHARS} characters"
            )
        self._plan.controls.check_id(id, model_name)
        key = request.sequence_key
        sequence = self._by_key.get(key)
        if sequence is not None:
            request.sequence_id = sequence.id
            if request.sequence_start:
                log.warning(conflict_message(id, model_name))
            return sequence
        if not request.sequence_start:
            raise invalid_arg(
                f"inference request for sequence {id} to model '{model_name}' must specify the "
                "START flag on the first request of the sequence"
            )
        if self._is_stopping and not job.is_inner:
            raise stopping_error()
        if (
            0 < self._max_queue_size <= len(self._backlog)
            and not job.is_admitted
            and job.caller is None
        ):
            self._statistics.record_failure(job.start_ns, self._clock.now_ns(), "REJECTED")
            raise unavailable("Exceeds maximum queue size", RETRY_AFTER_S)
        if id in self._used_ids:
            # Another API key has a sequence of this id. Models may keep their state by id, so the
            # model sees another one.
            request.sequence_id = id = self._new_id() if isinstance(id, int) else uuid4().hex
        sequence = self._by_key[key] = Sequence(id, key, request.identity)
        self._used_ids.add(id)
        return sequence

    def _new_id(self) -> int:
        while (id := next(self._ids)) in self._used_ids:
            pass
        return id

    def _forget(self, sequence: Sequence) -> None:
        """No further job can join the sequence; its id may be used for another one."""
        sequence.is_over = True
        if self._by_key.get(sequence.key) is sequence:
            del self._by_key[sequence.key]
            self._used_ids.discard(sequence.id)

    # Slots and backlog.

    def _place(self, sequence: Sequence) -> bool:
        """Puts the sequence into the lowest free slot, as Triton does, so that batches stay short.
        Where several instances have that slot free, the one with the fewest sequences gets it."""
        best: tuple[int, int, int] | None = None
        for number, lane in enumerate(self._lanes):
            slot = lane.first_free_slot() if lane.instance.is_serving and lane.left is None else -1
            if slot >= 0 and (best is None or (slot, lane.num_used) < best[:2]):
                best = (slot, lane.num_used, number)
        if best is None:
            return False
        lane = self._lanes[best[2]]
        lane.add(sequence, best[0])
        lane.update(sequence, self._clock.now_ns())
        if sequence.expiry is not None:
            sequence.expiry.cancel()
            sequence.expiry = None
        return True

    def _wait_in_backlog(self, sequence: Sequence, job: Job) -> None:
        """As long as the sequence has no slot, the shortest timeout among its requests holds for
        all of them."""
        self._backlog[sequence] = None
        timeout_us = job.request.timeout_us
        when_ns = job.queue_start_ns + timeout_us * 1000
        if timeout_us and (sequence.expiry is None or when_ns < sequence.expiry_ns):
            if sequence.expiry is not None:
                sequence.expiry.cancel()
            sequence.expiry_ns = when_ns
            sequence.expiry = self._clock.call_at(when_ns, partial(self._expire, sequence))

    def _expire(self, sequence: Sequence) -> None:
        self._end(sequence, unavailable("timeout of the corresponding sequence has been expired"))

    def _end(self, sequence: Sequence, error: NaiadError | None = None) -> None:
        """The only way in which a sequence ends: jobs that still wait in it fail with the error,
        and the next sequence gets its slot."""
        self._forget(sequence)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
        self._backlog.pop(sequence, None)
        if sequence.lane is not None:
            sequence.lane.remove(sequence)
        while sequence.jobs:
            assert error is not None
            self._refuse(sequence.jobs.popleft(), error)
        self._place_from_backlog()
        self._check_drained()

    def _place_from_backlog(self) -> None:
        while self._backlog:
            sequence = self._next_in_backlog()
            if not self._place(sequence):
                return
            del self._backlog[sequence]
            self._dispatch_soon()

    def _next_in_backlog(self) -> Sequence:
        """The first sequence of the API key that has fewest slots for its weight, so that a key
        that starts many sequences does not shut out another."""
        if len({key_of(sequence.owner) for sequence in self._backlog}) == 1:
            return next(iter(self._backlog))
        held = Counter(
            key_of(sequence.owner)
            for lane in self._lanes
            for sequence in lane.slots
            if sequence is not None
        )

        def share(sequence: Sequence) -> float:
            owner = sequence.owner
            return held[key_of(owner)] / (1 if owner is None else owner.weight)

        return min(self._backlog, key=share)

    def _refuse(self, job: Job, error: NaiadError) -> None:
        self._num_waiting -= 1
        self._statistics.pending_request_count -= 1
        self._statistics.record_failure(
            job.start_ns, self._clock.now_ns(), failure_reason(error.code, is_from_backend=False)
        )
        request = job.request
        job.stream.fail(error, request.model_name, request.model_version, request.id)

    def _cancel(self, sequence: Sequence, job: Job) -> None:
        """Jobs before one that is cancelled while it waits are executed; those after it fail."""
        if job not in sequence.jobs:
            return
        self._forget(sequence)
        dropped: deque[Job] = deque()
        while not dropped or dropped[0] is not job:
            dropped.appendleft(sequence.jobs.pop())
        self._refuse(dropped.popleft(), cancelled("request was cancelled while it was waiting"))
        for later in dropped:
            self._refuse(later, unavailable(BROKEN_MESSAGE, RETRY_AFTER_S))
        if sequence.is_idle:
            self._end(sequence)
        elif sequence.lane is not None:
            sequence.lane.update(sequence, self._clock.now_ns())

    # Idleness: there is one timer, for the sequence that has been idle longest. A sequence without
    #           a slot, or with a job, is not idle.

    def _watch_idleness(self) -> None:
        if self._idle_timer is not None:
            return
        idle = [sequence.last_used_ns for sequence in self._by_key.values() if sequence.is_idle]
        if idle:
            self._idle_timer = self._clock.call_at(
                min(idle) + self._plan.max_idle_ns, self._on_idle_timer
            )

    def _on_idle_timer(self) -> None:
        self._idle_timer = None
        before_ns = self._clock.now_ns() - self._plan.max_idle_ns
        for sequence in [
            s for s in self._by_key.values() if s.is_idle and s.last_used_ns <= before_ns
        ]:
            self._end(sequence)
        self._watch_idleness()

    # Dispatching.

    def _dispatch_soon(self) -> None:
        if not self._is_dispatch_due:
            # Not at once: jobs that arrive in the same iteration of the loop, on other connections,
            # join the batch.
            self._is_dispatch_due = True
            self._clock.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        for lane in self._lanes:
            self._dispatch_lane(lane)

    def _starts_now(self, lane: Lane) -> bool:
        """Ends the delay of the start when enough requests wait: for this lane, or for all lanes of
        the direct strategy, whose requests are counted together. A scheduler that stops executes
        what it has."""
        delay = self._start_delay
        if self._is_stopping:
            self._held.clear()
        elif self._plan.direct is None:
            if len(lane.ready) >= delay.num_queued:
                self._held.discard(lane)
        else:
            num_queued = sum(
                len(sequence.jobs)
                for each in self._lanes
                for sequence in each.slots
                if sequence is not None
            )
            num_backlogged = sum(len(sequence.jobs) for sequence in self._backlog)
            if num_queued >= delay.num_queued and num_backlogged >= delay.num_backlogged:
                self._held.clear()
        return lane not in self._held

    def _dispatch_lane(self, lane: Lane) -> None:
        if lane in self._held and not self._starts_now(lane):
            return
        plan = self._plan
        while lane.ready and lane.instance.is_free:
            now_ns = self._clock.now_ns()
            batch: Listing[Sequence | None]
            if plan.direct is not None:
                batch, wait_ns = lane.choose_direct(plan.direct, plan.rule, now_ns)
            else:
                batch, wait_ns = lane.choose_oldest(plan.rule, now_ns)
            if not batch:
                if lane.timer is not None:
                    lane.timer.cancel()
                lane.timer = self._clock.call_at(
                    now_ns + wait_ns, partial(self._dispatch_lane, lane)
                )
                return
            self._execute(lane, batch)

    def _execute(self, lane: Lane, batch: Listing[Sequence | None]) -> None:
        sequences = [sequence for sequence in batch if sequence is not None]
        like = sequences[0].jobs[0].request.inputs
        now_ns = self._clock.now_ns()
        jobs = [
            self._nulls.make(like, now_ns) if sequence is None else self._next_job(sequence)
            for sequence in batch
        ]
        for sequence in sequences:
            lane.update(sequence, now_ns)
        lane.instance.execute(jobs, partial(self._on_executed, sequences))

    def _next_job(self, sequence: Sequence) -> Job:
        """Removes the next job from the sequence and adds the inputs that the server adds."""
        job = sequence.jobs.popleft()
        request = job.request
        sequence.num_pending = 1
        self._num_waiting -= 1
        self._statistics.pending_request_count -= 1
        sequence.client_inputs = request.inputs
        controls = self._plan.controls.tensors(
            sequence.id, is_start=request.sequence_start, is_ready=True, is_end=request.sequence_end
        )
        request.inputs = request.inputs + controls
        if self._has_state:
            self._add_state(sequence, job)
        return job

    def _on_executed(
        self, sequences: list[Sequence], jobs: list[Job], rescheduled: list[Job]
    ) -> None:
        """`execute` has returned. A decoupled model, or one that responds from a thread, may still
        send responses."""
        for sequence, job in zip(sequences, (j for j in jobs if not j.is_null), strict=True):
            if job.stream.is_cancelled:
                # The model may have left it undone, and nobody has its response.
                self._break(sequence)
            if job in rescheduled:
                self._put_back(sequence, job)
            else:
                self._finish_pending(sequence)

    def _finish_pending(self, sequence: Sequence) -> None:
        """One of the events that the next job of the sequence waits for has happened."""
        lane = sequence.lane
        sequence.num_pending -= 1
        # A sequence without a lane has ended: its instance died meanwhile.
        if sequence.num_pending or lane is None:
            return
        sequence.last_used_ns = self._clock.now_ns()
        if (sequence.is_over or self._plan.is_iterative) and not sequence.jobs:
            self._end(sequence)
        elif sequence.jobs:
            lane.update(sequence, sequence.last_used_ns)
            self._dispatch_soon()
        else:
            self._watch_idleness()

    def _put_back(self, sequence: Sequence, job: Job) -> None:
        """The model of an iterative sequence wants to see the job again."""
        lane = sequence.lane
        if lane is None:
            return
        sequence.num_pending = 0
        job.request.inputs = sequence.client_inputs
        job.request.sequence_start = False
        now_ns = job.queue_start_ns = sequence.last_used_ns = self._clock.now_ns()
        self._num_waiting += 1
        self._statistics.pending_request_count += 1
        sequence.jobs.appendleft(job)
        lane.update(sequence, now_ns)
        if self._has_state:
            assert sequence.outer is not None
            job.stream = sequence.outer
        job.stream.on_cancel(partial(self._cancel, sequence, job))
        self._dispatch_soon()

    # Implicit state.

    def _add_state(self, sequence: Sequence, job: Job) -> None:
        """The response passes through `_on_response`, because it carries the state for the next
        job."""
        state, request = self._plan.state, job.request
        if request.sequence_start:
            sequence.state = state.initial()
        request.inputs = [*request.inputs, *sequence.state.values()]
        requested = frozenset(request.requested_outputs)
        request.requested_outputs = list(
            dict.fromkeys(
                [*(request.requested_outputs or self._plan.outputs), *state.output_names()]
            )
        )
        outer = sequence.outer = job.stream
        inner = job.stream = ResponseStream()
        sequence.num_pending += 1
        inner.deliver_to(partial(self._on_response, sequence, outer, requested))
        outer.on_cancel(inner.cancel)
        outer.on_flow(inner.pause)

    def _on_response(
        self,
        sequence: Sequence,
        outer: ResponseStream,
        requested: frozenset[str],
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        state = self._plan.state
        if response is not None and response.error is None:
            sequence.state = state.next(sequence.state, response.outputs)
            hidden = state.hidden_outputs
            response.outputs = [
                tensor
                for tensor in response.outputs
                if (tensor.name in requested if requested else tensor.name not in hidden)
            ]
        if is_final:
            self._finish_pending(sequence)
        outer.put(response, is_final)

    # What the instances report (naiad.instances.executor.InstanceObserver).

    def on_capacity(self, instance: Executor) -> None:
        lane = self._lane_of.get(instance)
        if lane is not None:
            self._dispatch_lane(lane)

    def on_idle(self, instance: Executor) -> None:
        self._check_drained()

    def on_state_change(self, instance: Executor) -> None:
        lane = self._lane_of.get(instance)
        if lane is None:
            return
        if instance.is_serving:
            self._place_from_backlog()
            self._dispatch_soon()
        else:
            error = unavailable(
                "the instance that held this sequence ended; start the sequence again",
                RETRY_AFTER_S,
            )
            for sequence in [s for s in lane.slots if s is not None]:
                self._end(sequence, error)
            if all(lane.instance.outage for lane in self._lanes):
                for sequence in list(self._backlog):
                    self._end(sequence, outage_error(instance.outage))
        self._check_drained()
