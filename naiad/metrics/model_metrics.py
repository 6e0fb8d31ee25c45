"""The metrics of the loaded models: Triton's, and Naiad's histograms in seconds.

In:  the statistics of every loaded version, read at scrape time. An unloaded version is missing
     from the next page.
Out: blocks of the metrics page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from naiad.core.statistics import LATENCY_BUCKETS_S, Histogram, ModelStatistics
from naiad.metrics import model_family as family
from naiad.metrics.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    LABEL_NAME,
    SUMMARY,
    Block,
    label_text,
    number,
)
from naiad.metrics.model_family import Row, SeriesRow
from naiad.metrics.summary import SlidingSummary, SummaryStatistics
from naiad.settings import LatencyMetrics

_SECONDS = [number(bound) for bound in LATENCY_BUCKETS_S]


class ModelSeries(msgspec.Struct):
    """One version of a model as the page shows it."""

    statistics: ModelStatistics
    tags: Mapping[str, str] = {}
    """`metric_tags` of the config. As in Triton, their names get an underscore as prefix."""
    num_workers_ready: int = 0
    oldest_execution_s: float = 0.0
    has_cache: bool = False
    """`response_cache { enable: true }`. Only such models have the counters of the cache."""
    gpu_uuid: str = ""
    namespace: str = ""
    """The repository of the model if --model-namespacing is on, otherwise empty."""

    def labels(self) -> dict[str, str]:
        labels = {
            f"_{key}": value for key, value in self.tags.items() if LABEL_NAME.fullmatch(f"_{key}")
        }
        if self.gpu_uuid:
            labels["gpu_uuid"] = self.gpu_uuid
        if self.namespace:
            labels["namespace"] = self.namespace
        return labels | {"model": self.statistics.name, "version": str(self.statistics.version)}


class ModelBlocks:
    """The blocks of all models for one page."""

    def __init__(self, models: Iterable[ModelSeries], latency: LatencyMetrics, now_ns: int) -> None:
        self._latency = latency
        self._now_ns = now_ns
        self._models = [(model, label_text(model.labels())) for model in models]

    def counters(self) -> list[Block]:
        latency = self._latency.has_counters
        rows = [*family.COUNTS, *(family.LATENCIES if latency else ())]
        cache_rows = [family.CACHE_HITS, family.CACHE_MISSES]
        if latency:
            cache_rows = [
                family.CACHE_HITS,
                family.CACHE_HIT_LATENCY,
                family.CACHE_MISSES,
                family.CACHE_MISS_LATENCY,
            ]
        blocks = [self._values(COUNTER, family.SUCCESS), self._failures()]
        blocks += [self._values(COUNTER, row) for row in rows]
        blocks += [self._values(COUNTER, row, cached_only=True) for row in cache_rows]
        return [*blocks, self._values(COUNTER, family.RESTARTS)]

    def gauges(self) -> list[Block]:
        workers = Block(family.WORKERS_NAME, GAUGE, family.WORKERS_HELP)
        executions = Block(family.EXECUTION_NAME, GAUGE, family.EXECUTION_HELP)
        for model, labels in self._models:
            workers.add(labels, model.num_workers_ready)
            executions.add(labels, model.oldest_execution_s)
        return [
            self._values(GAUGE, family.PENDING),
            self._values(GAUGE, family.LOAD_DURATION),
            workers,
            executions,
        ]

    def histograms(self) -> list[Block]:
        blocks: list[Block] = []
        if self._latency.has_histograms:
            blocks.append(self._plain_histogram(family.FIRST_RESPONSE))
        for row in family.SECONDS:
            block = Block(row.name, HISTOGRAM, row.help)
            for model, labels in self._models:
                histogram: Histogram = getattr(model.statistics, row.field)
                block.add_histogram(labels, _SECONDS, histogram.counts, histogram.total / 1e9)
            blocks.append(block)
        return [*blocks, self._plain_histogram(family.BATCH_SIZE)]

    def summaries(self) -> list[Block]:
        if not self._latency.has_summaries:
            return []
        return [self._summary(row) for row in family.SUMMARIES]

    def _values(self, kind: str, row: Row, *, cached_only: bool = False) -> Block:
        block = Block(row.name, kind, row.help)
        for model, labels in self._models:
            if model.has_cache or not cached_only:
                block.add(labels, row.read(model.statistics))
        return block

    def _failures(self) -> Block:
        block = Block(family.FAILURE_NAME, COUNTER, family.FAILURE_HELP)
        for model, _ in self._models:
            labels = model.labels()
            for reason, count in model.statistics.failures.items():
                block.add(label_text(labels | {"reason": reason}), count)
        return block

    def _plain_histogram(self, row: SeriesRow) -> Block:
        block = Block(row.name, HISTOGRAM, row.help)
        for model, labels in self._models:
            histogram: Histogram = getattr(model.statistics, row.field)
            block.add_histogram(
                labels,
                [number(bound) for bound in histogram.bounds],
                histogram.counts,
                histogram.total,
            )
        return block

    def _summary(self, row: SeriesRow) -> Block:
        block = Block(row.name, SUMMARY, row.help)
        quantiles = [quantile for quantile, _ in self._latency.quantiles]
        for model, labels in self._models:
            if isinstance(model.statistics, SummaryStatistics):
                summary: SlidingSummary = getattr(model.statistics, row.field)
                values = zip(quantiles, summary.quantiles(quantiles, self._now_ns), strict=True)
                block.add_summary(labels, values, summary.count, summary.total)
        return block
