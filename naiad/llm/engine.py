"""The engine: requests in, tokens out, one step at a time. Runs without the server, on one thread.

In:  submit(GenerationRequest), cancel(id). Out: step() returns what every completion gained since
     the last call.
Rule: what a request does wrong is its own error, raised by submit; what the device does wrong fails
      the requests that were on it. With asynchronous steps a step's tokens are read while the next
      one runs, so `step` returns the tokens of the launch before.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from naiad.errors import NaiadError, internal, invalid_arg, unavailable
from naiad.llm.accelerator import accelerator_of
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.engine_statistics import EngineLoad, EngineStatistics
from naiad.llm.generation import FinishReason, GenerationRequest, TokenLogprobs, TokenOutput
from naiad.llm.kv_events import KvEvents
from naiad.llm.sequence import Sequence, Status
from naiad.llm.sequence_builder import SequenceBuilder
from naiad.llm.step.runner import LaunchedStep, Runner
from naiad.llm.token_scheduler import StepPlan, TokenScheduler

if TYPE_CHECKING:
    from naiad.llm.kv_events import KvEventPublisher
    from naiad.llm.parallel.rank_group import RankGroup
    from naiad.llm.text.chat_template import ChatTemplate

MIN_BATCHED_TOKENS = 256
"""Out of memory halves the token budget, down to this; below, the requests fail."""


class Engine:
    def __init__(
        self,
        runner: Runner,
        scheduler: TokenScheduler,
        builder: SequenceBuilder,
        settings: EngineSettings,
        is_asynchronous: bool,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.builder = builder
        self.settings = settings
        self.open_chat_template: Callable[[], ChatTemplate | None] = lambda: None
        """Set by load.py. Reading a template computes its constants, so it waits for a use."""
        self.quantization = ""
        """The format of the weights and the kernels that multiply them, as text for people. Empty
        for weights that are not quantized."""
        self.code = ""
        """Whose code computes the model, as text for people, if it is not ours."""
        self.ranks: RankGroup | None = None
        """The other processes of an engine that has several ranks."""
        self.kv_cache = ""
        """The format of the KV cache, if it differs from that of the activations, as text for
        people."""
        self.statistics = EngineStatistics()
        self.kv_publisher: KvEventPublisher | None = None
        """Who is told what the prefix cache holds; None where nobody asked for it."""
        self._depth = 1 if is_asynchronous else 0
        self._clock_ns = clock_ns
        self._random = random.Random(settings.seed)
        self._sequences: dict[str, list[Sequence]] = {}
        self._in_flight: deque[LaunchedStep] = deque()
        self._launch_ns: deque[int] = deque()
        """When each step in flight was launched."""
        self._done_ns = 0
        self._outputs: list[TokenOutput] = []
        self._num_submitted = 0
        self._scores: dict[str, dict[int, TokenLogprobs]] = {}
        """Request -> position -> what is known of its prompt's log-probabilities."""

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The checkpoint's own template, which turns chats into prompts. It is rendered without
        limits of time and memory: a server uses naiad.backends.llm.chat. Raises NaiadError."""
        return self.open_chat_template()

    def submit(self, request: GenerationRequest) -> None:
        """Raises NaiadError: INVALID_ARG for what is wrong with the request, UNAVAILABLE when too
        many wait already."""
        if request.id in self._sequences:
            raise invalid_arg(f"a request with id '{request.id}' is under way already")
        request.parameters.check(self.builder.vocab_size)
        if request.prompt_logprobs is not None and self.ranks is not None:
            raise invalid_arg(
                "prompt_logprobs cannot be had of a model that is split over several ranks"
            )
        request.parameters.check_room(self.settings.max_waiting_requests)
        if not self.scheduler.has_room(
            request.key_id, request.parameters.n, self.settings.max_waiting_requests
        ):
            raise unavailable(
                f"{self.scheduler.num_waiting} requests wait already, the limit is "
                f"{self.settings.max_waiting_requests}",
                1,
            )
        sequences = self.builder.build(request, self._num_submitted, self._random)
        now_ns = self._clock_ns()
        for sequence in sequences:
            sequence.arrival_ns = now_ns
            self.scheduler.add(sequence)
        self._num_submitted += len(sequences)
        self._sequences[request.id] = sequences

    def cancel(self, request_id: str) -> None:
        """Its blocks are free at once. Unknown ids are ignored: the request may just have ended."""
        for sequence in self._sequences.get(request_id, ()):
            if sequence.status is not Status.FINISHED:
                self._finish(
                    sequence, TokenOutput(request_id, sequence.index, []), FinishReason.CANCELLED
                )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._in_flight or self._outputs)

    @property
    def is_ahead(self) -> bool:
        """The device is at work, and the next `step` will give it more before it waits for that."""
        return bool(self._in_flight) and self._depth > 0 and not self.scheduler.num_host_bound

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        """`on_launched` is called before the thread waits for the device: what need not be done
        before a launch is best done there."""
        if self.scheduler.num_host_bound:
            self._catch_up(0)
        plan = self.scheduler.schedule()
        if plan.rows:
            self._launch(plan)
        if on_launched is not None:
            on_launched()
        self._catch_up(self._depth if plan.rows else 0)
        if self.kv_publisher is not None:
            self._publish()
        outputs, self._outputs = self._outputs, []
        return outputs

    def publish_to(self, publisher: KvEventPublisher) -> None:
        """Tells readers from now on what the prefix cache holds."""
        self.scheduler.pool.events = KvEvents(self.scheduler.pool.block_size)
        self.scheduler.pool.events.cleared()
        self.kv_publisher = publisher

    def _publish(self) -> None:
        events = self.scheduler.pool.events
        if events is not None and self.kv_publisher is not None and (batch := events.pop()):
            self.kv_publisher.publish(batch)

    def run(self, requests: Iterable[GenerationRequest]) -> Iterable[TokenOutput]:
        """Submits all and steps until they are done: for scripts and benchmarks."""
        for request in requests:
            self.submit(request)
        while self.has_work:
            yield from self.step()

    def load(self) -> EngineLoad:
        scheduler, pool = self.scheduler, self.scheduler.pool
        return EngineLoad(
            len(scheduler.running),
            scheduler.num_waiting,
            pool.num_used / max(1, pool.capacity),
            scheduler.num_prefix_queries,
            scheduler.num_prefix_hits,
            scheduler.num_preemptions,
        )

    def _launch(self, plan: StepPlan) -> None:
        launch_ns = self._clock_ns()
        try:
            launched = self.runner.launch(plan)
        except torch.OutOfMemoryError as error:
            self._shrink(plan, error)
            return
        except Exception as error:
            self._fail_all(internal(f"a step of the model failed: {error}"))
            raise
        self._in_flight.append(launched)
        self._launch_ns.append(launch_ns)
        self.statistics.record_step(plan.num_tokens, plan.admitted, self._clock_ns())
        for sequence, failure in launched.failures:
            self._fail(sequence, failure)

    def _catch_up(self, depth: int) -> None:
        while len(self._in_flight) > depth:
            launched = self._in_flight.popleft()
            # A step that was launched ahead begins when the one before it is done.
            start_ns = max(self._launch_ns.popleft(), self._done_ns)
            try:
                tokens = launched.wait()
            except Exception as error:  # the device reports what went wrong in a launch only here
                self._fail_all(internal(f"a step of the model failed: {error}"))
                raise
            self._done_ns = self._clock_ns()
            plan = launched.plan
            self.scheduler.pace.on_step(plan.num_tokens - plan.num_single, self._done_ns - start_ns)
            self._postprocess(launched, tokens)

    def _postprocess(self, launched: LaunchedStep, tokens: list[int]) -> None:
        logprobs = launched.take_logprobs(tokens)
        for scored, at, entry in launched.take_scores():
            if scored.status is not Status.FINISHED:
                self._scores.setdefault(scored.request.id, {})[at] = entry
        now_ns = self._clock_ns()
        index = 0
        for row in launched.plan.rows:
            if row.is_sampled:
                sequence = row.sequence
                sequence.num_pending -= 1
                if sequence.status is not Status.FINISHED:
                    self._append(sequence, tokens[index], logprobs.get(index), now_ns)
                index += 1

    def _append(
        self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, now_ns: int
    ) -> None:
        sequence.tokens.append(token)
        self.statistics.record_token(sequence, sequence.num_prompt_tokens, now_ns)
        output = TokenOutput(
            sequence.request.id,
            sequence.index,
            [token],
            num_prompt_tokens=sequence.num_prompt_tokens,
        )
        output.num_cached_tokens = sequence.num_cached_tokens
        if logprobs is not None:
            output.logprobs = [logprobs]
        if sequence.request.prompt_logprobs is not None and sequence.num_output_tokens == 1:
            output.prompt_logprobs = self._take_scores(sequence)
        is_stop_allowed = len(sequence.tokens) >= sequence.min_length
        if is_stop_allowed and token in sequence.stop_token_ids:
            is_asked_for = token in sequence.request.parameters.stop_token_ids
            self._finish(sequence, output, FinishReason.STOP, token if is_asked_for else None)
            return
        if sequence.text is not None:
            output.text = sequence.text.append(token, is_stop_allowed)
            if sequence.text.matched_stop is not None:
                self._finish(sequence, output, FinishReason.STOP, sequence.text.matched_stop)
                return
        if sequence.grammar is not None and self._follow_grammar(sequence, token, output):
            return
        if len(sequence.tokens) >= sequence.max_length:
            self._finish(sequence, output, FinishReason.LENGTH)
            return
        self._outputs.append(output)

    def _take_scores(self, sequence: Sequence) -> list[TokenLogprobs] | None:
        if sequence.index:
            return None
        found = self._scores.pop(sequence.request.id, {})
        first = TokenLogprobs(sequence.tokens[0], 0.0, [])
        return [first, *(found[at] for at in range(1, sequence.num_prompt_tokens))]

    def _follow_grammar(self, sequence: Sequence, token: int, output: TokenOutput) -> bool:
        """True when the completion ended here."""
        assert sequence.grammar is not None
        try:
            is_accepted = sequence.grammar.accept(token)
            is_finished = sequence.grammar.is_finished()
        except Exception as error:
            self._fail(sequence, internal(f"the grammar of the request failed: {error}"))
            return True
        if not is_accepted:
            self._fail(sequence, internal(f"token {token} does not fit the grammar of the request"))
            return True
        if is_finished:
            self._finish(sequence, output, FinishReason.STOP)
        return is_finished

    def _finish(
        self,
        sequence: Sequence,
        output: TokenOutput,
        reason: FinishReason,
        stop: int | str | None = None,
    ) -> None:
        if (
            sequence.text is not None
            and sequence.text.matched_stop is None
            and reason in (FinishReason.STOP, FinishReason.LENGTH)
        ):
            output.text += sequence.text.finish()
            if sequence.text.matched_stop is not None:
                reason, stop = FinishReason.STOP, sequence.text.matched_stop
        output.finish_reason = reason
        output.stop_reason = stop
        self._outputs.append(output)
        self.scheduler.finish(sequence)
        self.statistics.record_finish(sequence, reason, self._clock_ns())
        siblings = self._sequences[sequence.request.id]
        if all(sibling.status is Status.FINISHED for sibling in siblings):
            del self._sequences[sequence.request.id]
            self._scores.pop(sequence.request.id, None)

    def _fail(self, sequence: Sequence, error: NaiadError) -> None:
        if sequence.status is not Status.FINISHED:
            self._finish(
                sequence,
                TokenOutput(sequence.request.id, sequence.index, [], error=error),
                FinishReason.ERROR,
            )

    def _shrink(self, plan: StepPlan, error: Exception) -> None:
        """Out of memory: the same rows again, in smaller steps. What the failed step was to write
        cannot be trusted."""
        self._catch_up(0)
        self.scheduler.pool.forget_all()
        accelerator_of(self.runner.device).empty_cache()
        budget = self.scheduler.max_num_batched_tokens
        for row in plan.rows:
            row.sequence.num_pending -= row.is_sampled
            if row.sequence.status is not Status.RUNNING:
                continue
            if budget // 2 < MIN_BATCHED_TOKENS:
                self._fail(
                    row.sequence,
                    unavailable(f"the device has too little memory for this request: {error}", 5),
                )
            else:
                self.scheduler.preempt(row.sequence)
        self.scheduler.max_num_batched_tokens = max(MIN_BATCHED_TOKENS, budget // 2)

    def _fail_all(self, error: NaiadError) -> None:
        self._in_flight.clear()
        self._launch_ns.clear()
        self.scheduler.pool.forget_all()
        for sequences in list(self._sequences.values()):
            for sequence in sequences:
                self._fail(sequence, error)
