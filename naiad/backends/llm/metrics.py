"""The metrics of a language model in /metrics, under the names that vLLM and TensorRT-LLM use and
that dashboards and gateways know.

In:  the engine's statistics, read by the engine's thread a few times a second. Out: changes, as
     Runtime.metric operations. The Gateway API Inference Extension reads vllm:num_requests_waiting,
     vllm:num_requests_running and vllm:kv_cache_usage_perc (with vllm:cache_config_info), or
     nv_trt_llm_request_metrics and nv_trt_llm_kv_cache_block_metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from naiad.backends.backend import Runtime
from naiad.backends.llm.model import OpenModel
from naiad.core.statistics import Histogram
from naiad.llm.generation import FinishReason
from naiad.metrics.operation import MetricOperation

TOKEN_BUCKETS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0,
)  # fmt: skip

_GAUGES = {
    "vllm:num_requests_running": "Number of requests in model execution batches.",
    "vllm:num_requests_waiting": "Number of requests waiting to be processed.",
    "vllm:kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "vllm:gpu_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS = {
    "vllm:prompt_tokens_total": "Number of prefill tokens processed.",
    "vllm:generation_tokens_total": "Number of generation tokens processed.",
    "vllm:num_preemptions_total": "Cumulative number of preemptions from the engine.",
    "vllm:prefix_cache_queries_total": (
        "Prefix cache queries, in terms of number of queried tokens."
    ),
    "vllm:prefix_cache_hits_total": "Prefix cache hits, in terms of number of cached tokens.",
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "vllm:time_per_output_token_seconds": "Histogram of time per output token in seconds.",
    "vllm:inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "vllm:e2e_request_latency_seconds": "Histogram of end to end request latency in seconds.",
    "vllm:request_prompt_tokens": "Number of prefill tokens processed.",
    "vllm:request_generation_tokens": "Number of generation tokens processed.",
    "vllm:request_max_num_generation_tokens": (
        "Histogram of maximum number of requested generation tokens."
    ),
    "vllm:request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "vllm:request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "vllm:request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "vllm:iteration_tokens_total": "Histogram of number of tokens per engine_step.",
}
_SUCCESS = ("vllm:request_success_total", "Count of successfully processed requests.")
_CACHE_CONFIG = ("vllm:cache_config_info", "Information of the cache configuration.")
_TRT_GAUGES = {
    "nv_trt_llm_request_metrics": ("TRT LLM request metrics", "request_type",
        ("active", "max", "scheduled", "context", "waiting")),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics", "kv_cache_block_type",
        ("max", "used", "free", "tokens_per", "fraction")
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "TRT LLM inflight_batcher-specific metrics", "inflight_batcher_specific_metric",
        ("generation_requests", "num_preemptions")
    ),
    "nv_trt_llm_general_metrics": ("General TRT LLM metrics", "general_type",
        ("iteration_counter", "timestamp")),
}  # fmt: skip
_TRT_HISTOGRAMS = {
    "nv_llm_input_token_len": ("TRT LLM response metrics", "total_input_tokens"),
    "nv_llm_output_token_len": ("TRT LLM response metrics", "total_output_tokens"),
}


class EngineMetrics:
    def __init__(
        self, runtime: Runtime, open_model: OpenModel, model_name: str, model_version: int
    ) -> None:
        self._runtime = runtime
        self._model = open_model
        self._labels = {
            "model": model_name,
            "version": str(model_version),
            "model_name": model_name,
        }
        self._handles: dict[str, int] = {}
        self._reported: dict[str, float] = {}
        self._reported_counts: dict[str, tuple[list[int], float]] = {}
        self._prompt_tokens = Histogram(TOKEN_BUCKETS)
        self._generation_tokens = Histogram(TOKEN_BUCKETS)
        self._longest = Histogram(TOKEN_BUCKETS)
        self.is_stale = True
        """True if something may have changed since the last update."""
        self._create()

    def record_request(
        self, num_prompt_tokens: int, num_output_tokens: int, num_longest: int
    ) -> None:
        """`num_longest` are the tokens of the longest completion."""
        self._prompt_tokens.observe(num_prompt_tokens)
        self._generation_tokens.observe(num_output_tokens)
        self._longest.observe(num_longest)

    def update(self) -> None:
        engine = self._model.engine
        load, statistics = engine.load(), engine.statistics
        num_blocks = self._model.num_kv_blocks
        num_used = round(load.kv_cache_usage * num_blocks)
        for name, value in (
            ("vllm:num_requests_running", load.num_running),
            ("vllm:num_requests_waiting", load.num_waiting),
            ("vllm:kv_cache_usage_perc", load.kv_cache_usage),
            ("vllm:gpu_cache_usage_perc", load.kv_cache_usage),
            ("nv_trt_llm_request_metrics active", load.num_running + load.num_waiting),
            ("nv_trt_llm_request_metrics scheduled", load.num_running),
            ("nv_trt_llm_request_metrics waiting", load.num_waiting),
            ("nv_trt_llm_kv_cache_block_metrics used", num_used),
            ("nv_trt_llm_kv_cache_block_metrics free", num_blocks - num_used),
            ("nv_trt_llm_kv_cache_block_metrics fraction", load.kv_cache_usage),
            ("nv_trt_llm_inflight_batcher_metrics generation_requests", load.num_running),
            ("nv_trt_llm_inflight_batcher_metrics num_preemptions", load.num_preemptions),
            ("nv_trt_llm_general_metrics iteration_counter", statistics.num_steps),
            ("nv_trt_llm_general_metrics timestamp", int(time.time())),
        ):
            self._set(name, value)
        for name, value in (
            ("vllm:prompt_tokens_total", statistics.prompt_tokens),
            ("vllm:generation_tokens_total", statistics.generation_tokens),
            ("vllm:num_preemptions_total", load.num_preemptions),
            ("vllm:prefix_cache_queries_total", load.prefix_queries),
            ("vllm:prefix_cache_hits_total", load.prefix_hits),
            *(
                (f"{_SUCCESS[0]} {reason}", statistics.finished[reason])
                for reason in (FinishReason.STOP, FinishReason.LENGTH)
            ),
        ):
            self._count(name, value)
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", statistics.first_token_s),
            ("vllm:time_per_output_token_seconds", statistics.inter_token_s),
            ("vllm:inter_token_latency_seconds", statistics.inter_token_s),
            ("vllm:e2e_request_latency_seconds", statistics.request_s),
            ("vllm:request_prompt_tokens", self._prompt_tokens),
            ("vllm:request_generation_tokens", self._generation_tokens),
            ("vllm:request_max_num_generation_tokens", self._longest),
            ("vllm:request_queue_time_seconds", statistics.queue_s),
            ("vllm:request_prefill_time_seconds", statistics.prefill_s),
            ("vllm:request_decode_time_seconds", statistics.decode_s),
            ("vllm:iteration_tokens_total", statistics.step_tokens),
            ("nv_llm_input_token_len", self._prompt_tokens),
            ("nv_llm_output_token_len", self._generation_tokens),
        ):
            self._merge(name, histogram)

    # Changes.

    def _set(self, name: str, value: float) -> None:
        if self._reported.get(name) != value:
            self._reported[name] = value
            self._runtime.metric(MetricOperation("set", self._handles[name], value=float(value)))

    def _count(self, name: str, value: float) -> None:
        increase = value - self._reported.get(name, 0.0)
        if increase > 0:
            self._reported[name] = value
            self._runtime.metric(
                MetricOperation("increment", self._handles[name], value=float(increase))
            )

    def _merge(self, name: str, histogram: Histogram) -> None:
        old_counts, old_total = self._reported_counts.get(name, ([0] * len(histogram.counts), 0.0))
        if old_counts != histogram.counts:
            increase = [new - old for new, old in zip(histogram.counts, old_counts, strict=True)]
            self._reported_counts[name] = (list(histogram.counts), histogram.total)
            operation = MetricOperation(
                "merge", self._handles[name], value=histogram.total - old_total, counts=increase
            )
            self._runtime.metric(operation)

    # Creation.

    def _create(self) -> None:
        for name, description in _GAUGES.items():
            self._handles[name] = self._metric(self._family(name, description, "GAUGE"))
        for name, description in _COUNTERS.items():
            self._handles[name] = self._metric(self._family(name, description, "COUNTER"))
        statistics = self._model.engine.statistics
        bounds = {
            "vllm:time_to_first_token_seconds": statistics.first_token_s.bounds,
            "vllm:time_per_output_token_seconds": statistics.inter_token_s.bounds,
            "vllm:inter_token_latency_seconds": statistics.inter_token_s.bounds,
            "vllm:e2e_request_latency_seconds": statistics.request_s.bounds,
            "vllm:request_queue_time_seconds": statistics.queue_s.bounds,
            "vllm:request_prefill_time_seconds": statistics.prefill_s.bounds,
            "vllm:request_decode_time_seconds": statistics.decode_s.bounds,
            "vllm:iteration_tokens_total": statistics.step_tokens.bounds,
        }
        for name, description in _HISTOGRAMS.items():
            family = self._family(name, description, "HISTOGRAM")
            self._handles[name] = self._metric(family, buckets=bounds.get(name, TOKEN_BUCKETS))
        family = self._family(*_SUCCESS, "COUNTER")
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._handles[f"{_SUCCESS[0]} {reason}"] = self._metric(
                family, {"finished_reason": reason.value}
            )
        for name, (description, label, kinds) in _TRT_GAUGES.items():
            family = self._family(name, description, "GAUGE")
            for kind in kinds:
                self._handles[f"{name} {kind}"] = self._metric(family, {label: kind})
        for name, (description, kind) in _TRT_HISTOGRAMS.items():
            family = self._family(name, description, "HISTOGRAM")
            self._handles[name] = self._metric(
                family, {"response_metric_type": kind}, TOKEN_BUCKETS
            )
        self._create_constants()

    def _create_constants(self) -> None:
        model = self._model
        config = {
            "block_size": str(model.block_size),
            "num_gpu_blocks": str(model.num_kv_blocks),
            "cache_dtype": "auto",
        }
        info = self._metric(self._family(*_CACHE_CONFIG, "GAUGE"), config)
        self._runtime.metric(MetricOperation("set", info, value=1.0))
        self._set("nv_trt_llm_request_metrics max", model.max_num_seqs)
        self._set("nv_trt_llm_kv_cache_block_metrics max", model.num_kv_blocks)
        self._set("nv_trt_llm_kv_cache_block_metrics tokens_per", model.block_size)

    def _family(self, name: str, description: str, kind: str) -> int:
        return int(
            self._runtime.metric(
                MetricOperation(
                    "create_family", name=name, description=description, metric_kind=kind
                )
            )
        )

    def _metric(
        self,
        family: int,
        labels: dict[str, str] | None = None,
        buckets: Iterable[float] | None = None,
    ) -> int:
        bounds = None if buckets is None else list(buckets)
        operation = MetricOperation(
            "create_metric", family, labels={**self._labels, **(labels or {})}, buckets=bounds
        )
        return int(self._runtime.metric(operation))
