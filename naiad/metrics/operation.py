"""What a model asks of its custom metrics (naiad.metrics.custom)."""

from __future__ import annotations

import msgspec


class MetricOperation(msgspec.Struct, array_like=True):
    """`kind` is one of create_family, create_metric, delete_family, delete_metric, increment, set,
    observe, merge, value."""

    kind: str
    handle: int = 0
    name: str = ""
    description: str = ""
    metric_kind: str = ""
    labels: dict[str, str] = {}
    buckets: list[float] | None = None
    value: float = 0.0
    counts: list[int] = []
    """For merge: what each bucket of a histogram gained, the last one being +Inf; `value` is what
    the sum gained."""
