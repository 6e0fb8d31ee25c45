"""The engine's statistics for metrics: totals since the start, and histograms of times and sizes.
Only the engine's thread writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from naiad.core.statistics import Histogram
from naiad.llm.generation import FinishReason

FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 10.0, 20.0,
)  # fmt: skip
REQUEST_BUCKETS_S = (
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0,
)  # fmt: skip
STEP_TOKEN_BUCKETS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip


class TimedSequence(Protocol):
    """A sequence of either engine."""

    arrival_ns: int
    begin_ns: int
    """When the sequence got its first place in a step; 0 before."""
    first_token_ns: int
    last_token_ns: int


class EngineStatistics:
    def __init__(self) -> None:
        self.num_steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.first_token_s = Histogram(FIRST_TOKEN_BUCKETS_S)
        self.inter_token_s = Histogram(INTER_TOKEN_BUCKETS_S)
        self.request_s = Histogram(REQUEST_BUCKETS_S)
        self.queue_s = Histogram(REQUEST_BUCKETS_S)
        """From arrival to the first step."""
        self.prefill_s = Histogram(REQUEST_BUCKETS_S)
        """From the first step to the first token."""
        self.decode_s = Histogram(REQUEST_BUCKETS_S)
        """From the first token to the last."""
        self.step_tokens = Histogram(STEP_TOKEN_BUCKETS)
        self.finished: dict[FinishReason, int] = dict.fromkeys(FinishReason, 0)

    def record_step(self, num_tokens: int, begun: Iterable[TimedSequence], now_ns: int) -> None:
        """`begun` are sequences that the step computes and the step before did not."""
        self.num_steps += 1
        self.step_tokens.observe(num_tokens)
        for sequence in begun:
            sequence.begin_ns = sequence.begin_ns or now_ns

    def record_token(self, sequence: TimedSequence, num_prompt_tokens: int, now_ns: int) -> None:
        self.generation_tokens += 1
        if sequence.first_token_ns == 0:
            sequence.first_token_ns = now_ns
            self.prompt_tokens += num_prompt_tokens
            begin_ns = sequence.begin_ns or sequence.arrival_ns
            self.first_token_s.observe((now_ns - sequence.arrival_ns) / 1e9)
            self.queue_s.observe((begin_ns - sequence.arrival_ns) / 1e9)
            self.prefill_s.observe((now_ns - begin_ns) / 1e9)
        else:
            self.inter_token_s.observe((now_ns - sequence.last_token_ns) / 1e9)
        sequence.last_token_ns = now_ns

    def record_finish(self, sequence: TimedSequence, reason: FinishReason, now_ns: int) -> None:
        self.finished[reason] += 1
        if sequence.first_token_ns:
            self.decode_s.observe((sequence.last_token_ns - sequence.first_token_ns) / 1e9)
        self.request_s.observe((now_ns - sequence.arrival_ns) / 1e9)


class EngineLoad:
    """The engine's current load, for gauges."""

    __slots__ = (
        "kv_cache_usage",
        "num_preemptions",
        "num_running",
        "num_waiting",
        "prefix_hits",
        "prefix_queries",
    )

    def __init__(
        self,
        num_running: int,
        num_waiting: int,
        kv_cache_usage: float,
        prefix_queries: int,
        prefix_hits: int,
        num_preemptions: int,
    ) -> None:
        self.num_running = num_running
        self.num_waiting = num_waiting
        self.kv_cache_usage = kv_cache_usage
        self.prefix_queries = prefix_queries
        self.prefix_hits = prefix_hits
        self.num_preemptions = num_preemptions
