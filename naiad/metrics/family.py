"""A metric family of a model and its metrics, and the rules for names, labels and buckets.

Error messages are Triton's (mostly prometheus-cpp's). Models see them after a prefix such as
`Failed to create metric: `.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import pairwise

from naiad.core.statistics import Histogram
from naiad.errors import invalid_arg
from naiad.metrics.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    LABEL_NAME,
    METRIC_NAME,
    Block,
    number,
)


class Metric:
    """A counter or a gauge has `value`, a histogram has `histogram`."""

    __slots__ = ("histogram", "labels", "num_handles", "value")

    def __init__(self, labels: str, histogram: Histogram | None) -> None:
        self.labels = labels
        self.histogram = histogram
        self.value = 0.0
        self.num_handles = 0


class Family:
    __slots__ = ("description", "kind", "metrics", "name", "num_handles")

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.metrics: dict[str, Metric] = {}
        self.num_handles = 0

    def block(self) -> Block:
        block = Block(self.name, self.kind, self.description)
        for metric in self.metrics.values():
            if metric.histogram is None:
                block.add(metric.labels, metric.value)
            else:
                bounds = [number(bound) for bound in metric.histogram.bounds]
                block.add_histogram(
                    metric.labels, bounds, metric.histogram.counts, metric.histogram.total
                )
        return block


def check_family(name: str, kind: str) -> None:
    if kind not in (COUNTER, GAUGE, HISTOGRAM):
        raise invalid_arg("Unsupported kind passed to MetricFamily constructor.")
    if METRIC_NAME.fullmatch(name) is None or name.startswith("__"):
        raise invalid_arg("Invalid metric name")


def check_labels(labels: Iterable[str], kind: str) -> None:
    for name in labels:
        is_valid = LABEL_NAME.fullmatch(name) is not None and not name.startswith("__")
        # A histogram's lines have a label `le` already. Triton accepts a second one, and its page
        # cannot be parsed then.
        if not is_valid or (kind == HISTOGRAM and name == "le"):
            raise invalid_arg("Invalid label name")


def checked_bounds(kind: str, buckets: Collection[float] | None) -> tuple[float, ...]:
    if kind != HISTOGRAM:
        if buckets is not None:
            raise invalid_arg(f"Unexpected args found in {kind} Metric constructor.")
        return ()
    if buckets is None:
        raise invalid_arg("Bucket boundaries not found in Metric args.")
    bounds = tuple(buckets)
    has_nan = any(math.isnan(bound) for bound in bounds)
    if has_nan or any(low >= high for low, high in pairwise(bounds)):
        raise invalid_arg("Bucket Boundaries must be strictly sorted")
    # Every histogram has a bucket for +Inf.
    return bounds[:-1] if bounds and bounds[-1] == math.inf else bounds
