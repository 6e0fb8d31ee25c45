"""The registry of the metrics that models create through pb_utils.MetricFamily.

In:  MetricOperation, and its owner: one worker process. Operations come as messages, so families
     and metrics are addressed by numeric handles.
Out: a handle or a value, as a float; blocks of the metrics page.
Rules: families with the same name and kind are one family, and metrics with the same labels are one
       metric. Each exists until its last handle is deleted or the owner of that handle is gone. An
       owner can use only its own handles.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from naiad.core.statistics import Histogram
from naiad.errors import NaiadError, internal, invalid_arg, unsupported
from naiad.metrics.exposition import COUNTER, GAUGE, HISTOGRAM, Block, label_text
from naiad.metrics.family import Family, Metric, check_family, check_labels, checked_bounds
from naiad.metrics.operation import MetricOperation

DELETED_FAMILY = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class FamilyHandle:
    __slots__ = ("family", "metrics", "owner")

    def __init__(self, owner: str, family: Family) -> None:
        self.owner = owner
        self.family = family
        self.metrics: set[int] = set()


class MetricHandle:
    __slots__ = ("family", "metric", "owner")

    def __init__(self, owner: str, family: int, metric: Metric) -> None:
        self.owner = owner
        self.family = family
        self.metric = metric


class CustomMetrics:
    def __init__(self) -> None:
        self._reserved: dict[str, str] = {}
        self._families: dict[str, Family] = {}
        self._family_handles: dict[int, FamilyHandle] = {}
        self._metric_handles: dict[int, MetricHandle] = {}
        self._numbers = count(1)

    def reserve(self, kinds: dict[str, str]) -> None:
        """Sets the names and kinds of the server's own families, once at start.

        A model may add metrics to one of them if the kind is the same.
        """
        self._reserved = kinds

    def apply(self, owner: str, operation: MetricOperation) -> float:
        """Raises NaiadError with Triton's messages."""
        match operation.kind:
            case "create_family":
                return float(
                    self.create_family(
                        owner, operation.name, operation.description, operation.metric_kind
                    )
                )
            case "create_metric":
                return float(
                    self.create_metric(owner, operation.handle, operation.labels, operation.buckets)
                )
            case "increment":
                self.increment(owner, operation.handle, operation.value)
            case "set":
                self.set(owner, operation.handle, operation.value)
            case "observe":
                self.observe(owner, operation.handle, operation.value)
            case "merge":
                self.merge(owner, operation.handle, operation.counts, operation.value)
            case "value":
                return self.value(owner, operation.handle)
            case "delete_family":
                self.delete_family(owner, operation.handle)
            case "delete_metric":
                self.delete_metric(owner, operation.handle)
            case kind:
                raise internal(f"unknown metric operation '{kind}'")
        return 0.0

    def create_family(self, owner: str, name: str, description: str, kind: str) -> int:
        kind = kind.lower()
        check_family(name, kind)
        family = self._families.get(name)
        if kind != (family.kind if family is not None else self._reserved.get(name, kind)):
            raise invalid_arg("Family name already exists with different type")
        if family is None:
            family = self._families[name] = Family(name, description, kind)
        family.num_handles += 1
        handle = next(self._numbers)
        self._family_handles[handle] = FamilyHandle(owner, family)
        return handle

    def create_metric(
        self,
        owner: str,
        family_handle: int,
        labels: dict[str, str],
        buckets: Collection[float] | None,
    ) -> int:
        parent = self._family_handle(owner, family_handle)
        family = parent.family
        check_labels(labels, family.kind)
        bounds = checked_bounds(family.kind, buckets)
        text = label_text(labels)
        metric = family.metrics.get(text)
        if metric is None:
            metric = family.metrics[text] = Metric(
                text, Histogram(bounds) if family.kind == HISTOGRAM else None
            )
        metric.num_handles += 1
        handle = next(self._numbers)
        self._metric_handles[handle] = MetricHandle(owner, family_handle, metric)
        parent.metrics.add(handle)
        return handle

    def increment(self, owner: str, handle: int, value: float) -> None:
        metric, kind = self._metric(owner, handle)
        if kind == HISTOGRAM:
            raise _does_not_support(kind, "Increment")
        # `not value >= 0` rejects NaN too: a counter that became NaN would stay NaN.
        if kind == COUNTER and not value >= 0:
            raise invalid_arg(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
                "non-negative values."
            )
        metric.value += value

    def set(self, owner: str, handle: int, value: float) -> None:
        metric, kind = self._metric(owner, handle)
        if kind != GAUGE:
            raise _does_not_support(kind, "Set")
        metric.value = value

    def observe(self, owner: str, handle: int, value: float) -> None:
        metric, kind = self._metric(owner, handle)
        if metric.histogram is None:
            raise _does_not_support(kind, "Observe")
        metric.histogram.observe(value)

    def merge(self, owner: str, handle: int, counts: list[int], total: float) -> None:
        """Adds the values that a worker has observed since its last merge.

        Workers use it for histograms with too many values for one message each.
        """
        metric, kind = self._metric(owner, handle)
        if metric.histogram is None:
            raise _does_not_support(kind, "Merge")
        if len(counts) != len(metric.histogram.counts):
            raise invalid_arg(
                f"{len(counts)} counts for a histogram of {len(metric.histogram.counts)} buckets"
            )
        metric.histogram.counts = [
            old + new for old, new in zip(metric.histogram.counts, counts, strict=True)
        ]
        metric.histogram.total += total

    def value(self, owner: str, handle: int) -> float:
        metric, kind = self._metric(owner, handle)
        if kind == HISTOGRAM:
            raise _does_not_support(kind, "Value")
        return metric.value

    def delete_metric(self, owner: str, handle: int) -> None:
        """Does nothing if the family was deleted, because that deleted the metric too."""
        entry = self._metric_handles.get(handle)
        if entry is not None and entry.owner == owner:
            self._family_handles[entry.family].metrics.discard(handle)
            self._release_metric(handle)

    def delete_family(self, owner: str, handle: int) -> None:
        entry = self._family_handles.get(handle)
        if entry is None or entry.owner != owner:
            return
        for metric in entry.metrics:
            self._release_metric(metric)
        del self._family_handles[handle]
        entry.family.num_handles -= 1
        if entry.family.num_handles == 0:
            del self._families[entry.family.name]

    def drop_owner(self, owner: str) -> None:
        """Deletes the handles of a worker that is gone."""
        for handle, entry in list(self._family_handles.items()):
            if entry.owner == owner:
                self.delete_family(owner, handle)

    def values(self, name: str) -> dict[str, float]:
        """Returns label text -> value of the counters or gauges of a family.

        Returns an empty dict if there is no such family.
        """
        family = self._families.get(name)
        if family is None:
            return {}
        return {labels: metric.value for labels, metric in family.metrics.items()}

    def blocks(self) -> list[Block]:
        return [family.block() for family in self._families.values()]

    def _family_handle(self, owner: str, handle: int) -> FamilyHandle:
        entry = self._family_handles.get(handle)
        if entry is None or entry.owner != owner:
            raise invalid_arg(DELETED_FAMILY)
        return entry

    def _metric(self, owner: str, handle: int) -> tuple[Metric, str]:
        entry = self._metric_handles.get(handle)
        if entry is None or entry.owner != owner:
            raise invalid_arg(DELETED_FAMILY)
        return entry.metric, self._family_handles[entry.family].family.kind

    def _release_metric(self, handle: int) -> None:
        entry = self._metric_handles.pop(handle)
        entry.metric.num_handles -= 1
        if entry.metric.num_handles == 0:
            del self._family_handles[entry.family].family.metrics[entry.metric.labels]


def _does_not_support(kind: str, operation: str) -> NaiadError:
    return unsupported(f"TRITONSERVER_METRIC_KIND_{kind.upper()} does not support {operation}")
