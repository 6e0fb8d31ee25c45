"""The counters of one model version, for the statistics extension and the metrics page.

They are plain ints without locks, because only the event loop writes them: once per batch and once
per request. Histograms are needed only by a scrape, so durations are collected in lists and sorted
into buckets later, many at once.
Rule: only this file decides which event increments which counter.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from naiad.errors import Code

LATENCY_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
LATENCY_BUCKETS_NS = tuple(int(s * 1e9) for s in LATENCY_BUCKETS_S)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)


class Duration(msgspec.Struct):
    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


class Histogram:
    """A histogram with fixed buckets.

    `counts[i]` is the number of values in (bounds[i-1], bounds[i]], not cumulative. The last count
    is for values above every bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_all(self, values: list[int], scale: int = 1) -> None:
        """Observes every value, divided by `scale`."""
        buckets = np.searchsorted(self.bounds, np.array(values) / scale)
        for bucket, count in enumerate(np.bincount(buckets).tolist()):
            self.counts[bucket] += count
        self.total += sum(values) / scale if scale != 1 else sum(values)


class BatchTimes(msgspec.Struct):
    """Monotonic times of one execution. The worker and the server share the clock."""

    compute_start_ns: int
    compute_input_end_ns: int
    compute_output_start_ns: int
    compute_end_ns: int


class BatchStatistics(msgspec.Struct):
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)


class ResponseStatistics(msgspec.Struct):
    """Counters for the n-th response of decoupled requests."""

    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    empty_response: Duration = msgspec.field(default_factory=Duration)
    cancel: Duration = msgspec.field(default_factory=Duration)


class CompletedRequest(Protocol):
    """The part of a Job that is counted when it has its response."""

    start_ns: int
    queue_start_ns: int
    batch_size: int


MAX_WAITING = 1024
"""Sort the collected durations into buckets once there are more than this many."""

MAX_RESPONSES = 1000
"""The responses of one request that have counters of their own. A stream may have millions, and
the counters stay until the model is unloaded."""
FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


class ModelStatistics:
    """The counters of one model version since it was loaded."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.pending_request_count = 0
        self.load_duration_s = 0.0
        self.created_at_s = time.time()
        """When the load of the version began."""
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.batch: dict[int, BatchStatistics] = {}
        self.responses: dict[int, ResponseStatistics] = {}
        self.failures: dict[str, int] = dict.fromkeys(FAILURE_REASONS, 0)
        self.worker_restarts = 0
        self._request_histogram = Histogram(LATENCY_BUCKETS_NS)
        self._queue_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.compute_input_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.compute_infer_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.compute_output_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.batch_size_histogram = Histogram(BATCH_SIZE_BUCKETS)
        self._first_response_histogram_ms = Histogram(FIRST_RESPONSE_BUCKETS_MS)
        self._waiting_request_ns: list[int] = []
        self._waiting_queue_ns: list[int] = []
        self._waiting_first_ns: list[int] = []

    @property
    def request_histogram(self) -> Histogram:
        self._sort_waiting()
        return self._request_histogram

    @property
    def queue_histogram(self) -> Histogram:
        self._sort_waiting()
        return self._queue_histogram

    @property
    def first_response_histogram_ms(self) -> Histogram:
        self._sort_waiting()
        return self._first_response_histogram_ms

    @first_response_histogram_ms.setter
    def first_response_histogram_ms(self, histogram: Histogram) -> None:
        self._sort_waiting()
        self._first_response_histogram_ms = histogram

    def _sort_waiting(self) -> None:
        for waiting, histogram, scale in (
            (self._waiting_request_ns, self._request_histogram, 1),
            (self._waiting_queue_ns, self._queue_histogram, 1),
            (self._waiting_first_ns, self._first_response_histogram_ms, 1_000_000),
        ):
            if waiting:
                histogram.observe_all(waiting, scale)
                waiting.clear()

    def record_execution(self, batch_size: int, times: BatchTimes, count: int = 1) -> None:
        """Counts one execution of a batch, or `count` equal ones, even if its requests failed."""
        self.execution_count += count
        self.batch_size_histogram.observe(batch_size, count)
        statistics = self.batch.get(batch_size)
        if statistics is None:
            statistics = self.batch[batch_size] = BatchStatistics()
        statistics.compute_input.add(
            (times.compute_input_end_ns - times.compute_start_ns) * count, count
        )
        statistics.compute_infer.add(
            (times.compute_output_start_ns - times.compute_input_end_ns) * count, count
        )
        statistics.compute_output.add(
            (times.compute_end_ns - times.compute_output_start_ns) * count, count
        )

    def record_compute(self, num_requests: int, times: BatchTimes) -> None:
        """Counts the compute times of one execution for its requests that succeeded.

        As in Triton, each request is charged the durations of the whole batch.
        """
        input_ns = times.compute_input_end_ns - times.compute_start_ns
        infer_ns = times.compute_output_start_ns - times.compute_input_end_ns
        output_ns = times.compute_end_ns - times.compute_output_start_ns
        self.compute_input.add(input_ns * num_requests, num_requests)
        self.compute_infer.add(infer_ns * num_requests, num_requests)
        self.compute_output.add(output_ns * num_requests, num_requests)
        self.compute_input_histogram.observe(input_ns, num_requests)
        self.compute_infer_histogram.observe(infer_ns, num_requests)
        self.compute_output_histogram.observe(output_ns, num_requests)
        self.last_inference_ms = time.time_ns() // 1_000_000

    def record_success(
        self,
        batch_size: int,
        start_ns: int,
        queue_start_ns: int,
        compute_start_ns: int,
        end_ns: int,
    ) -> None:
        """Counts one request that succeeded. `record_compute` counts its compute times."""
        self.inference_count += batch_size
        self.success.add(end_ns - start_ns)
        self.queue.add(compute_start_ns - queue_start_ns)
        self._waiting_request_ns.append(end_ns - start_ns)
        self._waiting_queue_ns.append(compute_start_ns - queue_start_ns)
        if len(self._waiting_request_ns) > MAX_WAITING:
            self._sort_waiting()

    def record_responses(
        self, requests: Sequence[CompletedRequest], compute_start_ns: int, end_ns: int
    ) -> None:
        """Does `record_success` and `record_first_response` for all requests of one execution."""
        request_ns = [end_ns - request.start_ns for request in requests]
        queue_ns = [compute_start_ns - request.queue_start_ns for request in requests]
        self.inference_count += sum([request.batch_size for request in requests])
        success, queue, count = self.success, self.queue, len(request_ns)
        success.count += count
        success.ns += sum(request_ns)
        queue.count += count
        queue.ns += sum(queue_ns)
        self._waiting_request_ns += request_ns
        self._waiting_queue_ns += queue_ns
        self._waiting_first_ns += request_ns
        if len(self._waiting_request_ns) > MAX_WAITING:
            self._sort_waiting()

    def record_bundle(
        self,
        start_ns: list[int],
        batch_size: int,
        queue_start_ns: int,
        compute_start_ns: int,
        end_ns: int,
    ) -> None:
        """Does `record_responses` for requests that began at these times and are alike in all
        else."""
        request_ns = [end_ns - one_ns for one_ns in start_ns]
        queue_ns, count = compute_start_ns - queue_start_ns, len(request_ns)
        self.inference_count += batch_size * count
        success, queue = self.success, self.queue
        success.count += count
        success.ns += sum(request_ns)
        queue.count += count
        queue.ns += queue_ns * count
        self._waiting_request_ns += request_ns
        self._waiting_queue_ns += [queue_ns] * count
        self._waiting_first_ns += request_ns
        if len(self._waiting_request_ns) > MAX_WAITING:
            self._sort_waiting()

    def record_unqueued(self, requests: Sequence[CompletedRequest], end_ns: int) -> None:
        """Does `record_success` for requests of an ensemble, which never wait in a queue."""
        request_ns = [end_ns - request.start_ns for request in requests]
        self.inference_count += sum([request.batch_size for request in requests])
        count = len(request_ns)
        self.success.add(sum(request_ns), count)
        self.queue.count += count
        self._waiting_request_ns += request_ns
        self._waiting_queue_ns += [0] * count
        if len(self._waiting_request_ns) > MAX_WAITING:
            self._sort_waiting()

    def record_cache_hit(self, start_ns: int, look_up_ns: int, end_ns: int) -> None:
        """Counts a request whose response came from the cache: a success without an inference."""
        self.success.add(end_ns - start_ns)
        self.queue.add(0)
        self.cache_hit.add(look_up_ns)
        self._request_histogram.observe(end_ns - start_ns)
        self.last_inference_ms = time.time_ns() // 1_000_000

    def record_failure(self, start_ns: int, end_ns: int, reason: str) -> None:
        self.fail.add(end_ns - start_ns)
        self.failures[reason] += 1

    def record_first_response(self, start_ns: int, end_ns: int) -> None:
        self._waiting_first_ns.append(end_ns - start_ns)
        if len(self._waiting_first_ns) > MAX_WAITING:
            self._sort_waiting()

    def response(self, index: int) -> ResponseStatistics | None:
        """Returns the counters for the n-th response of a request. None from MAX_RESPONSES on."""
        statistics = self.responses.get(index)
        if statistics is None:
            if index >= MAX_RESPONSES:
                return None
            statistics = self.responses[index] = ResponseStatistics()
        return statistics


def failure_reason(code: Code, *, is_from_backend: bool) -> str:
    """Returns Triton's `reason` label.

    REJECTED: by the scheduler. CANCELED: by the client. BACKEND: the model failed. OTHER: the rest.
    """
    if code is Code.CANCELLED:
        return "CANCELED"
    if is_from_backend:
        return "BACKEND"
    return "REJECTED" if code is Code.UNAVAILABLE else "OTHER"
