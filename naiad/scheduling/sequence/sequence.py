"""Sequence batching: requests that belong together go to the same instance, in order, one at a
time.

In:  InferRequest with a sequence id. Out: batches for instances, with control inputs and implicit
     state added. A sequence owns a slot of one instance from its START until its END has been
     executed, it was idle for too long, or one of its requests was cancelled while it waited. One
     that finds no slot waits in the backlog, in order of arrival.
Rules: a sequence never has two requests executing (sequence_lane.py decides who goes together);
       when an instance dies, so do its sequences, because the model's memory of them is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence as Listing
from functools import partial

import msgspec

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics, failure_reason
from naiad.errors import NaiadError, cancelled, invalid_arg, unavailable, unsupported
from naiad.instances.executor import Executor
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.ordering import Ordering
from naiad.scheduling.queue import RETRY_AFTER_S
from naiad.scheduling.scheduler import Resizable, SequenceKeeper
from naiad.scheduling.sequence.controls import SequenceControls
from naiad.scheduling.sequence.implicit_state import ImplicitState
from naiad.scheduling.sequence.lane import DirectRule, Lane, Sequence
from naiad.scheduling.sequence.null_request import NullRequests

MAX_STRING_ID_CHARS = 128


class SequencePlan(msgspec.Struct, frozen=True):
    model_name: str
    direct: DirectRule | None
    """None for `oldest`."""
    slots_per_instance: int
    max_idle_ns: int
    rule: BatchRule
    """Of `oldest`; `direct` uses what must be equal within a batch."""
    controls: SequenceControls
    state: ImplicitState
    outputs: list[str]
    """Of the model, as clients see them."""
    is_iterative: bool = False
    """One request is a whole sequence: the model asks for it again until it is done."""
    preserve_ordering: bool = False


class SequenceScheduler:
    def __init__(
        self,
        instances: Listing[Executor],
        plan: SequencePlan,
        clock: Clock,
        statistics: ModelStatistics,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._statistics = statistics
        self._has_state = bool(plan.state.tensors)
        self._nulls = NullRequests(plan.controls, plan.state)
        self._ordering = Ordering() if plan.preserve_ordering else None
        self._lanes: list[Lane] = []
        self._lane_of: dict[Executor, Lane] = {}
        self._by_id: dict[int | str, Sequence] = {}
        """Those that can be continued: their last request has not come."""
        self._backlog: dict[Sequence, None] = {}
        self._num_waiting = 0
        self._ids = itertools.count(1)
        self._is_dispatch_due = False
        self._idle_timer: Timer | None = None
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None
        for instance in instances:
            self._add_lane(instance)

    def _add_lane(self, instance: Executor) -> None:
        lane = self._lane_of[instance] = Lane(instance, self._plan.slots_per_instance)
        self._lanes.append(lane)
        instance.attach(self)

    # Scheduler.

    def enqueue(self, request: InferRequest) -> ResponseStream:
        sequence = self._sequence_for(request)
        stream = outer = request.stream = ResponseStream()
        if self._ordering is not None:
            outer = self._ordering.add(stream)
        now_ns = request.queue_start_ns = sequence.last_used_ns = self._clock.now_ns()
        self._num_waiting += 1
        self._statistics.pending_request_count += 1
        sequence.requests.append(request)
        stream.on_cancel(partial(self._cancel, sequence, request))
        if request.sequence_end:
            self._forget(sequence)
        if sequence.lane is not None:
            sequence.lane.update(sequence, now_ns)
        elif not self._place(sequence):
            self._wait_in_backlog(sequence, request)
        self._dispatch_soon()
        return outer

    @property
    def sequences(self) -> SequenceKeeper:
        return self

    def has_sequence(self, id: int | str) -> bool:
        return id in self._by_id

    def inflight(self) -> int:
        return self._num_waiting + sum(lane.instance.inflight for lane in self._lanes)

    async def stop(self) -> None:
        """Sequences that are open may go on to their end, or until they are idle for too long."""
        self._is_stopping = True
        while not self._is_drained():
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped
        if self._idle_timer is not None:
            self._idle_timer.cancel()  # it would keep this scheduler in memory until it fires

    def _is_drained(self) -> bool:
        return not self._by_id and not self.inflight()

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
        self._take_from_backlog()

    async def remove_instance(self, instance: Executor) -> None:
        """The sequences that it has go on to their end."""
        lane = self._lane_of[instance]
        lane.left = asyncio.get_running_loop().create_future()
        self._check_drained()
        await lane.left
        self._lanes.remove(lane)
        del self._lane_of[instance]

    # Which sequence.

    def _sequence_for(self, request: InferRequest) -> Sequence:
        """Raises NaiadError; nothing has changed then."""
        model_name, id = self._plan.model_name, request.sequence_id
        if request.batch_size > 1:
            raise invalid_arg(
                f"inference request to model '{model_name}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        if not id and self._plan.is_iterative:
            id = self._new_id()
            request.sequence_id, request.sequence_start = id, True
        if not id:
            raise invalid_arg(
                f"inference request to model '{model_name}' must specify a non-zero or non-empty correlation ID"
            )
        if isinstance(id, str) and len(id) > MAX_STRING_ID_CHARS:
            raise unsupported(
                f"string correlation ID cannot be longer than {MAX_STRING_ID_CHARS} characters"
            )
        self._plan.controls.check_id(id, model_name)
        sequence = self._by_id.get(id)
        if sequence is not None:
            if request.sequence_start:
                log.warning(
                    f"sequence {id} for model '{model_name}' has a conflict. The previous sequence did not end before this sequence start. "
                    "Previous sequence will be terminated early."
                )
            return sequence
        if not request.sequence_start:
            raise invalid_arg(
                f"inference request for sequence {id} to model '{model_name}' must specify the START flag "
                "on the first request of the sequence"
            )
        if self._is_stopping and not request.is_inner:
            raise unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
                RETRY_AFTER_S,
            )
        sequence = self._by_id[id] = Sequence(id)
        return sequence

    def _new_id(self) -> int:
        while (id := next(self._ids)) in self._by_id:
            pass
        return id

    def _forget(self, sequence: Sequence) -> None:
        """No further request can join it; its id may be used for another one."""
        sequence.is_over = True
        if self._by_id.get(sequence.id) is sequence:
            del self._by_id[sequence.id]

    # Slots and backlog.

    def _place(self, sequence: Sequence) -> bool:
        """Into the lowest free slot, as Triton does: batches stay short. Of equal ones, on the
        instance with the least to do."""
        best: tuple[int, int, int] | None = None
        for at, lane in enumerate(self._lanes):
            slot = lane.first_free_slot() if lane.instance.is_serving and lane.left is None else -1
            if slot >= 0 and (best is None or (slot, lane.num_used) < best[:2]):
                best = (slot, lane.num_used, at)
        if best is None:
            return False
        lane = self._lanes[best[2]]
        lane.add(sequence, best[0])
        lane.update(sequence, self._clock.now_ns())
        if sequence.expiry is not None:
            sequence.expiry.cancel()
            sequence.expiry = None
        return True

    def _wait_in_backlog(self, sequence: Sequence, request: InferRequest) -> None:
        """The shortest timeout among its requests is the sequence's own, as long as it has no
        slot."""
        self._backlog[sequence] = None
        when_ns = request.queue_start_ns + request.timeout_us * 1000
        if request.timeout_us and (sequence.expiry is None or when_ns < sequence.expiry_ns):
            if sequence.expiry is not None:
                sequence.expiry.cancel()
            sequence.expiry_ns = when_ns
            sequence.expiry = self._clock.call_at(when_ns, partial(self._expire, sequence))

    def _expire(self, sequence: Sequence) -> None:
        self._end(sequence, unavailable("timeout of the corresponding sequence has been expired"))

    def _end(self, sequence: Sequence, error: NaiadError | None = None) -> None:
        """The only exit: whatever still waits in it is answered with the error, and its slot goes
        to the next one."""
        self._forget(sequence)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
        self._backlog.pop(sequence, None)
        if sequence.lane is not None:
            sequence.lane.remove(sequence)
        while sequence.requests:
            assert error is not None
            self._refuse(sequence.requests.popleft(), error)
        self._take_from_backlog()
        self._check_drained()

    def _take_from_backlog(self) -> None:
        while self._backlog:
            sequence = next(iter(self._backlog))
            if not self._place(sequence):
                return
            del self._backlog[sequence]
            self._dispatch_soon()

    def _refuse(self, request: InferRequest, error: NaiadError) -> None:
        self._num_waiting -= 1
        self._statistics.pending_request_count -= 1
        self._statistics.record_failure(
            request.start_ns,
            self._clock.now_ns(),
            failure_reason(error.code, is_from_backend=False),
        )
        assert request.stream is not None
        request.stream.fail(error, request.model_name, request.model_version, request.id)

    def _cancel(self, sequence: Sequence, request: InferRequest) -> None:
        """A request that waits takes all that come after it along: a sequence with a hole in it
        would be another one."""
        if request not in sequence.requests:
            return
        self._forget(sequence)
        dropped: deque[InferRequest] = deque()
        while not dropped or dropped[0] is not request:
            dropped.appendleft(sequence.requests.pop())
        for late in dropped:
            self._refuse(
                late, cancelled("a request of the sequence was cancelled while it was waiting")
            )
        if sequence.is_idle:
            self._end(sequence)
        elif sequence.lane is not None:
            sequence.lane.update(sequence, self._clock.now_ns())

    # Idleness: one timer, for the sequence that has been idle longest. Without a slot, or with work
    #           to do, nobody is idle.

    def _watch_idleness(self) -> None:
        if self._idle_timer is not None:
            return
        idle = [sequence.last_used_ns for sequence in self._by_id.values() if sequence.is_idle]
        if idle:
            self._idle_timer = self._clock.call_at(
                min(idle) + self._plan.max_idle_ns, self._on_idle_timer
            )

    def _on_idle_timer(self) -> None:
        self._idle_timer = None
        before_ns = self._clock.now_ns() - self._plan.max_idle_ns
        for sequence in [
            s for s in self._by_id.values() if s.is_idle and s.last_used_ns <= before_ns
        ]:
            self._end(sequence)
        self._watch_idleness()

    # Dispatching.

    def _dispatch_soon(self) -> None:
        if not self._is_dispatch_due:
            # Not at once: requests that arrived in the same turn of the loop, on other connections,
            # join the batch.
            self._is_dispatch_due = True
            self._clock.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        for lane in self._lanes:
            self._dispatch_lane(lane)

    def _dispatch_lane(self, lane: Lane) -> None:
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
        like = sequences[0].requests[0].inputs
        now_ns = self._clock.now_ns()
        requests = [
            self._nulls.make(like, now_ns) if sequence is None else self._take(sequence)
            for sequence in batch
        ]
        for sequence in sequences:
            lane.update(sequence, now_ns)
        lane.instance.execute(requests, partial(self._on_executed, sequences))

    def _take(self, sequence: Sequence) -> InferRequest:
        """Its next request, with the inputs that the server adds."""
        request = sequence.requests.popleft()
        sequence.num_pending = 1
        self._num_waiting -= 1
        self._statistics.pending_request_count -= 1
        sequence.given_inputs = request.inputs
        controls = self._plan.controls.tensors(
            sequence.id, is_start=request.sequence_start, is_ready=True, is_end=request.sequence_end
        )
        request.inputs = request.inputs + controls
        if self._has_state:
            self._add_state(sequence, request)
        return request

    def _on_executed(
        self,
        sequences: list[Sequence],
        requests: list[InferRequest],
        rescheduled: list[InferRequest],
    ) -> None:
        """`execute` has returned; a decoupled model, or one that answers from a thread, may still
        be at it."""
        for sequence, request in zip(
            sequences, (r for r in requests if not r.is_null), strict=True
        ):
            if request in rescheduled:
                self._put_back(sequence, request)
            else:
                self._settle(sequence)

    def _settle(self, sequence: Sequence) -> None:
        """One of the things that the next request of the sequence waits for has happened."""
        lane = sequence.lane
        sequence.num_pending -= 1
        # without a lane: the instance died meanwhile, and the sequence with it
        if sequence.num_pending or lane is None:
            return
        sequence.last_used_ns = self._clock.now_ns()
        if (sequence.is_over or self._plan.is_iterative) and not sequence.requests:
            self._end(sequence)
        elif sequence.requests:
            lane.update(sequence, sequence.last_used_ns)
            self._dispatch_soon()
        else:
            self._watch_idleness()

    def _put_back(self, sequence: Sequence, request: InferRequest) -> None:
        """The model of an iterative sequence wants to see the request again."""
        lane = sequence.lane
        if lane is None:
            return
        sequence.num_pending = 0
        request.inputs = sequence.given_inputs
        request.sequence_start = False
        now_ns = request.queue_start_ns = sequence.last_used_ns = self._clock.now_ns()
        self._num_waiting += 1
        self._statistics.pending_request_count += 1
        sequence.requests.appendleft(request)
        lane.update(sequence, now_ns)
        if self._has_state:
            assert sequence.outer is not None
            request.stream = sequence.outer
        assert request.stream is not None
        request.stream.on_cancel(partial(self._cancel, sequence, request))
        self._dispatch_soon()

    # Implicit state.

    def _add_state(self, sequence: Sequence, request: InferRequest) -> None:
        """The answer comes by here first: it carries the state of the next request."""
        state = self._plan.state
        if request.sequence_start:
            sequence.state = state.initial()
        request.inputs = [*request.inputs, *sequence.state.values()]
        wanted = frozenset(request.requested_outputs)
        request.requested_outputs = list(
            dict.fromkeys(
                [*(request.requested_outputs or self._plan.outputs), *state.output_names()]
            )
        )
        outer = sequence.outer = request.stream
        assert outer is not None
        inner = request.stream = ResponseStream()
        sequence.num_pending += 1
        inner.deliver_to(partial(self._on_response, sequence, outer, wanted))
        outer.on_cancel(inner.cancel)
        outer.on_flow(inner.pause)

    def _on_response(
        self,
        sequence: Sequence,
        outer: ResponseStream,
        wanted: frozenset[str],
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        state = self._plan.state
        if response is not None and response.error is None:
            sequence.state = state.next(sequence.state, response.outputs)
            hidden = state.hidden_outputs
            response.outputs = [
                t
                for t in response.outputs
                if (t.name in wanted if wanted else t.name not in hidden)
            ]
        if is_final:
            self._settle(sequence)
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
            self._take_from_backlog()
            self._dispatch_soon()
        else:
            error = unavailable(
                "the instance that held this sequence ended; start the sequence again",
                RETRY_AFTER_S,
            )
            for sequence in [s for s in lane.slots if s is not None]:
                self._end(sequence, error)
            if all(lane.instance.is_broken for lane in self._lanes):
                for sequence in list(self._backlog):
                    self._end(
                        sequence,
                        unavailable("no instance of the model is able to serve", RETRY_AFTER_S),
                    )
        self._check_drained()
