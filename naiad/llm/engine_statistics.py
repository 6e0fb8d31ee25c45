"""The engine's statistics for metrics: totals since the start and three latency histograms. Only
the engine's thread writes them."""

from __future__ import annotations

from naiad.core.statistics import Histogram
from naiad.llm.generation import FinishReason
from naiad.llm.sequence import Sequence

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


class EngineStatistics:
    def __init__(self) -> None:
        self.num_steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.first_token_s = Histogram(FIRST_TOKEN_BUCKETS_S)
        self.inter_token_s = Histogram(INTER_TOKEN_BUCKETS_S)
        self.request_s = Histogram(REQUEST_BUCKETS_S)
        self.finished: dict[FinishReason, int] = dict.fromkeys(FinishReason, 0)

    def record_token(self, sequence: Sequence, now_ns: int) -> None:
        self.generation_tokens += 1
        if sequence.first_token_ns == 0:
            sequence.first_token_ns = now_ns
            self.prompt_tokens += sequence.num_prompt_tokens
            self.first_token_s.observe((now_ns - sequence.arrival_ns) / 1e9)
        else:
            self.inter_token_s.observe((now_ns - sequence.last_token_ns) / 1e9)
        sequence.last_token_ns = now_ns

    def record_finish(self, sequence: Sequence, reason: FinishReason, now_ns: int) -> None:
        self.finished[reason] += 1
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
