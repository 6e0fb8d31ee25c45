"""The table of the metrics of every model: name, help text, and the value in its statistics.

Names, help texts and order of the nv_ rows are exactly Triton's, because dashboards and analyzers
match on them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from naiad.core.statistics import ModelStatistics


class Row(NamedTuple):
    name: str
    help: str
    read: Callable[[ModelStatistics], float]


class SeriesRow(NamedTuple):
    """A histogram or a summary. `field` is the attribute of the statistics."""

    name: str
    help: str
    field: str


def _us(phase: str) -> Callable[[ModelStatistics], int]:
    nanoseconds = attrgetter(f"{phase}.ns")
    return lambda statistics: nanoseconds(statistics) // 1000


_REQUEST = "inference request duration in microseconds (includes cached requests)"
_QUEUE = "inference queuing duration in microseconds (includes cached requests)"
_INPUT = "Cumulative compute input duration in microseconds (does not include cached requests)"
_INFER = "Cumulative compute inference duration in microseconds (does not include cached requests)"
_OUTPUT = (
    "Cumulative inference compute output duration in microseconds "
    "(does not include cached requests)"
)

SUCCESS = Row(
    "nv_inference_request_success",
    "Number of successful inference requests, all batch sizes",
    attrgetter("success.count"),
)
FAILURE_NAME, FAILURE_HELP = (
    "nv_inference_request_failure",
    "Number of failed inference requests, all batch sizes",
)
COUNTS = [
    Row(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        attrgetter("inference_count"),
    ),
    Row(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        attrgetter("execution_count"),
    ),
]
LATENCIES = [
    Row("nv_inference_request_duration_us", f"Cumulative {_REQUEST}", _us("success")),
    Row("nv_inference_queue_duration_us", f"Cumulative {_QUEUE}", _us("queue")),
    Row("nv_inference_compute_input_duration_us", _INPUT, _us("compute_input")),
    Row("nv_inference_compute_infer_duration_us", _INFER, _us("compute_infer")),
    Row("nv_inference_compute_output_duration_us", _OUTPUT, _us("compute_output")),
]
CACHE_HITS = Row(
    "nv_cache_num_hits_per_model", "Number of cache hits per model", attrgetter("cache_hit.count")
)
CACHE_HIT_LATENCY = Row(
    "nv_cache_hit_duration_per_model",
    "Total cache hit duration per model, in microseconds",
    _us("cache_hit"),
)
CACHE_MISSES = Row(
    "nv_cache_num_misses_per_model",
    "Number of cache misses per model",
    attrgetter("cache_miss.count"),
)
CACHE_MISS_LATENCY = Row(
    "nv_cache_miss_duration_per_model",
    "Total cache miss (insert+lookup) duration per model, in microseconds",
    _us("cache_miss"),
)
PENDING = Row(
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
    attrgetter("pending_request_count"),
)
LOAD_DURATION = Row(
    "nv_model_load_duration_secs", "Model load time in seconds", attrgetter("load_duration_s")
)

FIRST_RESPONSE = SeriesRow(
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
    "first_response_histogram_ms",
)
SUMMARIES = [
    SeriesRow("nv_inference_request_summary_us", f"Summary of {_REQUEST}", "request_summary_us"),
    SeriesRow("nv_inference_queue_summary_us", f"Summary of {_QUEUE}", "queue_summary_us"),
    # Triton says "Cumulative" in the help of these three, too.
    SeriesRow("nv_inference_compute_input_summary_us", _INPUT, "compute_input_summary_us"),
    SeriesRow("nv_inference_compute_infer_summary_us", _INFER, "compute_infer_summary_us"),
    SeriesRow("nv_inference_compute_output_summary_us", _OUTPUT, "compute_output_summary_us"),
]

# Naiad's own metrics, which are always shown.
SECONDS = [
    SeriesRow(
        "naiad_request_duration_seconds",
        "Time from the arrival of a request to its response",
        "request_histogram",
    ),
    SeriesRow(
        "naiad_queue_duration_seconds",
        "Time a request waited for an instance",
        "queue_histogram",
    ),
    SeriesRow(
        "naiad_compute_input_duration_seconds",
        "Time to pass the inputs of a request to the model",
        "compute_input_histogram",
    ),
    SeriesRow(
        "naiad_compute_infer_duration_seconds",
        "Time the model took for the batch of a request",
        "compute_infer_histogram",
    ),
    SeriesRow(
        "naiad_compute_output_duration_seconds",
        "Time to return the outputs of a request",
        "compute_output_histogram",
    ),
]
BATCH_SIZE = SeriesRow("naiad_batch_size", "Sizes of the executed batches", "batch_size_histogram")
RESTARTS = Row(
    "naiad_worker_restarts_total",
    "Number of times a worker of the model died and was restarted",
    attrgetter("worker_restarts"),
)
EXECUTION_NAME = "naiad_oldest_execution_seconds"
EXECUTION_HELP = "Time since the oldest batch that a worker executes now was sent to it, 0 if none"
WORKERS_NAME, WORKERS_HELP = "naiad_workers_ready", "Number of workers that accept requests"
