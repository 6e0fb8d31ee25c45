"""Sequence batching: requests that belong together go to the same instance, in order, one at a time.

In:  InferRequest with a sequence id. Out: batches for instances, with control inputs and implicit state added.
`direct`: a sequence owns a batch slot of one instance, and a batch holds every slot up to the last one in use (empty ones not READY).
`oldest`: an instance holds candidate sequences, and the oldest waiting request of each may join a dynamic batch.
A sequence that finds no free slot waits in the backlog, in order of arrival. Rules: a sequence never has two requests in flight;
START opens it, END or idleness closes it; when an instance dies, so do its sequences, because the model's memory of them is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Listing
from functools import partial

import msgspec

from naiad.core.clock import Clock, Timer
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics, failure_reason
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, cancelled, invalid_arg, unavailable
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.implicit_state import ImplicitState
from naiad.scheduling.queue import RETRY_AFTER_S
from naiad.scheduling.scheduler import Executor
from naiad.scheduling.sequence_controls import SequenceControls


class SequencePlan(msgspec.Struct, frozen=True):
    model_name: str
    is_direct: bool
    slots_per_instance: int
    max_idle_ns: int
    rule: BatchRule
    """Of `oldest`; `direct` uses its delay and what must be equal within a batch."""
    minimum_slot_utilization: float
    controls: SequenceControls
    state: ImplicitState
    outputs: list[str]
    """Of the model, as clients see them."""


class _Sequence:
    __slots__ = ("id", "is_running", "lane", "last_used_ns", "requests", "slot", "state")

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.lane: _Lane | None = None
        self.slot = -1
        self.requests: deque[InferRequest] = deque()
        self.is_running = False
        self.last_used_ns = 0
        self.state: dict[str, Tensor] = {}


class _Lane:
    """The slots of one instance."""

    __slots__ = ("instance", "slots", "timer")

    def __init__(self, instance: Executor, num_slots: int) -> None:
        self.instance = instance
        self.slots: list[_Sequence | None] = [None] * num_slots
        self.timer: Timer | None = None

    @property
    def num_used(self) -> int:
        return sum(sequence is not None for sequence in self.slots)

    def waiting(self) -> list[_Sequence]:
        return [s for s in self.slots if s is not None and s.requests and not s.is_running]


class SequenceScheduler:
    def __init__(self, instances: Listing[Executor], plan: SequencePlan, clock: Clock, statistics: ModelStatistics) -> None:
        self._plan = plan
        self._clock = clock
        self._statistics = statistics
        self._lanes = [_Lane(instance, plan.slots_per_instance) for instance in instances]
        self._sequences: dict[int | str, _Sequence] = {}
        self._backlog: deque[_Sequence] = deque()
        self._num_inflight = 0
        self._is_dispatch_due = False
        self._idle_timer: Timer | None = None
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None
        for lane in self._lanes:
            lane.instance.on_free = partial(self._on_free, lane)
            lane.instance.on_state = partial(self._on_state, lane)

    # Scheduler.

    def enqueue(self, request: InferRequest) -> ResponseStream:
        sequence = self._sequence_for(request)
        stream = request.stream = ResponseStream()
        request.queue_start_ns = sequence.last_used_ns = self._clock.now_ns()
        sequence.requests.append(request)
        self._num_inflight += 1
        self._statistics.pending_request_count += 1
        stream.on_cancel(partial(self._cancel, sequence, request))
        if sequence.lane is None and sequence not in self._backlog:
            self._place(sequence)
        self._watch_idleness()
        if not self._is_dispatch_due:
            self._is_dispatch_due = True
            self._clock.call_soon(self._dispatch)
        return stream

    def inflight(self) -> int:
        return self._num_inflight

    async def stop(self) -> None:
        """Sequences that are open may go on to their end, or until they are idle for too long."""
        self._is_stopping = True
        while self._num_inflight or self._sequences:
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped

    # Sequences.

    def _sequence_for(self, request: InferRequest) -> _Sequence:
        model_name, id = self._plan.model_name, request.sequence_id
        prefix = f"[request id: {request.id or '<id_unknown>'}] "
        if not id:
            raise invalid_arg(f"{prefix}inference request to model '{model_name}' must specify a non-zero or non-empty correlation ID")
        if request.batch_size != 1:
            raise invalid_arg(
                f"{prefix}inference request to model '{model_name}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        self._plan.controls.check_id(id, model_name)
        sequence = self._sequences.get(id)
        if sequence is None:
            if not request.sequence_start:
                raise invalid_arg(
                    f"{prefix}inference request for sequence {id} to model '{model_name}' must specify the START flag "
                    "on the first request of the sequence"
                )
            if self._is_stopping:
                raise unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests", RETRY_AFTER_S)
            sequence = self._sequences[id] = _Sequence(id)
        return sequence

    def _place(self, sequence: _Sequence) -> None:
        """Into a slot of the instance with the most room, else into the backlog."""
        best: _Lane | None = None
        for lane in self._lanes:
            if lane.instance.is_serving and None in lane.slots and (best is None or lane.num_used < best.num_used):
                best = lane
        if best is None:
            self._backlog.append(sequence)
            return
        sequence.lane = best
        sequence.slot = best.slots.index(None)
        best.slots[sequence.slot] = sequence

    def _close(self, sequence: _Sequence) -> None:
        if self._sequences.get(sequence.id) is sequence:
            del self._sequences[sequence.id]
        lane = sequence.lane
        if lane is not None:
            lane.slots[sequence.slot] = None
            sequence.lane = None
        self._take_from_backlog()
        self._wake_stop()

    def _take_from_backlog(self) -> None:
        while self._backlog and any(None in lane.slots and lane.instance.is_serving for lane in self._lanes):
            self._place(self._backlog.popleft())

    def _fail_waiting(self, sequence: _Sequence, error: NaiadError) -> None:
        while sequence.requests:
            self._refuse(sequence.requests.popleft(), error)

    def _refuse(self, request: InferRequest, error: NaiadError) -> None:
        self._num_inflight -= 1
        self._statistics.pending_request_count -= 1
        self._statistics.record_failure(request.start_ns, self._clock.now_ns(), failure_reason(error.code, is_from_backend=False))
        assert request.stream is not None
        request.stream.fail(error, request.model_name, request.model_version, request.id)
        self._wake_stop()

    def _cancel(self, sequence: _Sequence, request: InferRequest) -> None:
        """Of a request that waits; the sequence goes on without it, unless it was the one to end it."""
        if request in sequence.requests:
            sequence.requests.remove(request)
            self._refuse(request, cancelled("request was cancelled while it was waiting"))
            if request.sequence_end and not sequence.is_running and not sequence.requests:
                self._close(sequence)

    # Idleness: one timer, for the sequence that has been idle longest.

    def _watch_idleness(self) -> None:
        if self._idle_timer is None and self._sequences:
            oldest_ns = min(sequence.last_used_ns for sequence in self._sequences.values())
            self._idle_timer = self._clock.call_at(oldest_ns + self._plan.max_idle_ns, self._on_idle_timer)

    def _on_idle_timer(self) -> None:
        self._idle_timer = None
        before_ns = self._clock.now_ns() - self._plan.max_idle_ns
        for sequence in list(self._sequences.values()):
            if sequence.last_used_ns > before_ns or sequence.is_running:
                if sequence.is_running:
                    sequence.last_used_ns = max(sequence.last_used_ns, before_ns + 1)
                continue
            if sequence.lane is None:
                self._backlog.remove(sequence)
                self._fail_waiting(sequence, unavailable("timeout of the corresponding sequence has been expired"))
            elif sequence.requests:
                sequence.last_used_ns = self._clock.now_ns()  # it waits for its instance, not for its client
                continue
            self._close(sequence)
        self._watch_idleness()
        self._dispatch()

    # Dispatching.

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        for lane in self._lanes:
            self._dispatch_lane(lane)

    def _on_free(self, lane: _Lane, instance: Executor) -> None:
        self._take_from_backlog()
        self._dispatch_lane(lane)

    def _dispatch_lane(self, lane: _Lane) -> None:
        while lane.instance.is_free:
            waiting = lane.waiting()
            if not waiting:
                return
            waiting.sort(key=lambda sequence: sequence.requests[0].queue_start_ns)
            age_ns = self._clock.now_ns() - waiting[0].requests[0].queue_start_ns
            if self._plan.is_direct:
                chosen, wait_ns = self._choose_direct(lane, waiting, age_ns)
            else:
                count, wait_ns = self._plan.rule.choose((sequence.requests[0] for sequence in waiting), age_ns)
                chosen = waiting[:count]
            if not chosen:
                self._wait(lane, wait_ns)
                return
            self._execute(lane, chosen)

    def _wait(self, lane: _Lane, wait_ns: int) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        lane.timer = self._clock.call_at(self._clock.now_ns() + wait_ns, partial(self._dispatch_lane, lane))

    def _choose_direct(self, lane: _Lane, waiting: list[_Sequence], age_ns: int) -> tuple[list[_Sequence], int]:
        """All that fit together with the oldest; or how long to wait for more slots to have something to do."""
        delay_ns = self._plan.rule.max_queue_delay_ns
        if delay_ns and age_ns < delay_ns and len(waiting) < self._plan.minimum_slot_utilization * len(lane.slots):
            return [], delay_ns - age_ns
        first = self._plan.rule.signature(waiting[0].requests[0])
        return [s for s in waiting if self._plan.rule.signature(s.requests[0]) == first], 0

    def _execute(self, lane: _Lane, chosen: list[_Sequence]) -> None:
        batch: list[InferRequest] = []
        if self._plan.is_direct:
            by_slot = {sequence.slot: sequence for sequence in chosen}
            for slot in range(max(index for index, s in enumerate(lane.slots) if s is not None) + 1):
                sequence = by_slot.get(slot)
                batch.append(self._null_request(chosen[0].requests[0]) if sequence is None else self._take(sequence))
        else:
            batch = [self._take(sequence) for sequence in chosen]
        lane.instance.execute(batch)

    def _take(self, sequence: _Sequence) -> InferRequest:
        """The next request of a sequence, as the instance sees it: with controls and state, answering to us first."""
        outer = sequence.requests.popleft()
        sequence.is_running = True
        self._statistics.pending_request_count -= 1
        if outer.sequence_start:
            sequence.state = self._plan.state.initial()
        controls = self._plan.controls.tensors(sequence.id, is_start=outer.sequence_start, is_ready=True, is_end=outer.sequence_end)
        inner = msgspec.structs.replace(outer, inputs=[*outer.inputs, *controls, *sequence.state.values()], stream=ResponseStream())
        if self._plan.state.tensors:
            inner.requested_outputs = list(
                dict.fromkeys([*(outer.requested_outputs or self._plan.outputs), *self._plan.state.output_names()])
            )
        assert inner.stream is not None
        assert outer.stream is not None
        inner.stream.deliver_to(partial(self._on_response, sequence, outer))
        outer.stream.on_cancel(inner.stream.cancel)
        outer.stream.on_flow(inner.stream.pause)
        return inner

    def _null_request(self, like: InferRequest) -> InferRequest:
        """Fills a slot that has nothing to do: same shapes, not READY; its answer is dropped."""
        controls = self._plan.controls.tensors("" if isinstance(like.sequence_id, str) else 0, is_start=False, is_ready=False, is_end=False)
        state = [state.initial for state in self._plan.state.tensors]
        stream = ResponseStream()
        stream.deliver_to(lambda response, is_final: None)
        return InferRequest(
            like.model_name,
            [*like.inputs, *controls, *state],
            start_ns=self._clock.now_ns(),
            queue_start_ns=self._clock.now_ns(),
            is_null=True,
            stream=stream,
        )

    def _on_response(self, sequence: _Sequence, outer: InferRequest, response: InferResponse | None, is_final: bool) -> None:
        if response is not None and response.error is None and self._plan.state.tensors:
            sequence.state = self._plan.state.next(sequence.state, response.outputs)
            wanted = frozenset(outer.requested_outputs)
            hidden = self._plan.state.hidden_outputs()
            response.outputs = [t for t in response.outputs if (t.name in wanted if wanted else t.name not in hidden)]
        if is_final:
            self._num_inflight -= 1
            sequence.is_running = False
            sequence.last_used_ns = self._clock.now_ns()
            if outer.sequence_end and not sequence.requests:
                self._close(sequence)
        assert outer.stream is not None
        outer.stream.put(response, is_final)
        if is_final:
            self._watch_idleness()
            self._wake_stop()
            if not self._is_dispatch_due:
                self._is_dispatch_due = True
                self._clock.call_soon(self._dispatch)

    # Instances that come and go.

    def _on_state(self, lane: _Lane, instance: Executor) -> None:
        if instance.is_serving:
            self._take_from_backlog()
            self._dispatch()
            return
        error = unavailable("the instance that held this sequence ended; start the sequence again", RETRY_AFTER_S)
        for sequence in [s for s in lane.slots if s is not None]:
            self._fail_waiting(sequence, error)
            self._close(sequence)
        if all(lane.instance.is_broken for lane in self._lanes):
            while self._backlog:
                sequence = self._backlog.popleft()
                self._fail_waiting(sequence, unavailable("no instance of the model is able to serve", RETRY_AFTER_S))
                self._close(sequence)

    def _wake_stop(self) -> None:
        if self._stopped is not None and not self._stopped.done() and not self._num_inflight and not self._sequences:
            self._stopped.set_result(None)
