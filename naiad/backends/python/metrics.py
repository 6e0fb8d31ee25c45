"""`pb_utils.MetricFamily` and `Metric`: the counters, gauges and histograms that a model creates.

The server keeps the values, and this process has handles. Changes do not wait for the server, so
operations that a metric does not support are rejected here, with Triton's messages. Deleting a
family deletes its metrics.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from naiad.backends.python.error import TritonModelException, signature_error
from naiad.backends.python.instance import Instance, current, from_finalizer
from naiad.backends.python.wire_text import as_text, wire_text
from naiad.errors import NaiadError
from naiad.metrics.operation import MetricOperation


class MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    __str__ = enum.Enum.__str__


class _Family:
    """The state that a family shares with its metrics, which must not keep the family alive."""

    __slots__ = ("handle", "instance", "is_deleted", "kind")

    def __init__(self, instance: Instance, kind: MetricKind, handle: int) -> None:
        self.instance = instance
        self.kind = kind
        self.handle = handle
        self.is_deleted = False


class MetricFamily:
    __slots__ = ("_family",)

    COUNTER: ClassVar = MetricKind.COUNTER
    GAUGE: ClassVar = MetricKind.GAUGE
    HISTOGRAM: ClassVar = MetricKind.HISTOGRAM

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        name, description = as_text(name), as_text(description)
        if (
            not isinstance(name, str)
            or not isinstance(description, str)
            or not isinstance(kind, MetricKind)
        ):
            raise signature_error(
                "MetricFamily(name: str, description: str, kind: MetricKind)",
                name,
                description,
                kind,
            )
        instance = current()
        operation = MetricOperation(
            "create_family",
            name=wire_text(name),
            description=wire_text(description),
            metric_kind=kind.name,
        )
        handle = _operate(instance, operation, "Error when creating MetricFamily")
        self._family = _Family(instance, kind, int(handle))

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:  # noqa: N802 - Triton's name
        """Returns the metric with these labels. Equal labels return the same metric."""
        family = self._family
        operation = MetricOperation(
            "create_metric",
            handle=family.handle,
            metric_kind=family.kind.name,
            labels=_check_labels(family.instance, labels),
            buckets=_check_buckets(family.kind, buckets),
        )
        return Metric(
            family, int(_operate(family.instance, operation, "Error when creating Metric"))
        )

    def __del__(self) -> None:
        family = getattr(self, "_family", None)
        if family is not None:
            family.is_deleted = True
            from_finalizer(
                family.instance.runtime.metric,
                MetricOperation("delete_family", handle=family.handle),
            )


class Metric:
    __slots__ = ("_family", "_handle")

    def __init__(self, family: _Family, handle: int) -> None:
        self._family = family
        self._handle = handle

    def increment(self, value: float) -> None:
        failure = "Failed to increment metric value"
        self._check("Increment", (MetricKind.COUNTER, MetricKind.GAUGE), failure)
        value = _number("Metric.increment(value: float)", value)
        if value < 0 and self._family.kind is MetricKind.COUNTER:
            reason = (
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
                "non-negative values."
            )
            raise _failure(self._family.instance, failure, reason)
        self._change("increment", value, failure)

    def set(self, value: float) -> None:
        self._check("Set", (MetricKind.GAUGE,), "Failed to set metric value")
        self._change(
            "set", _number("Metric.set(value: float)", value), "Failed to set metric value"
        )

    def observe(self, value: float) -> None:
        self._check("Observe", (MetricKind.HISTOGRAM,), "Failed to observe metric value")
        self._change(
            "observe",
            _number("Metric.observe(value: float)", value),
            "Failed to observe metric value",
        )

    def value(self) -> float:
        """Gets the value from the server."""
        failure = "Failed to get metric value"
        self._check("Value", (MetricKind.COUNTER, MetricKind.GAUGE), failure)
        return _operate(
            self._family.instance, MetricOperation("value", handle=self._handle), failure
        )

    def _check(self, verb: str, kinds: tuple[MetricKind, ...], failure: str) -> None:
        if self._family.is_deleted:
            raise TritonModelException(
                f"{failure}: Invalid metric operation as the corresponding 'MetricFamily' has been "
                "deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
                "'Metric' objects have been deleted."
            )
        if self._family.kind not in kinds:
            reason = f"TRITONSERVER_METRIC_KIND_{self._family.kind.name} does not support {verb}"
            raise _failure(self._family.instance, failure, reason)

    def _change(self, kind: str, value: float, failure: str) -> None:
        _operate(
            self._family.instance, MetricOperation(kind, handle=self._handle, value=value), failure
        )

    def __del__(self) -> None:
        if not self._family.is_deleted:
            from_finalizer(
                self._family.instance.runtime.metric,
                MetricOperation("delete_metric", handle=self._handle),
            )


def _operate(instance: Instance, operation: MetricOperation, failure: str) -> float:
    try:
        return instance.runtime.metric(operation)
    except NaiadError as error:
        raise _failure(instance, failure, error.message) from None


def _failure(instance: Instance, failure: str, reason: str) -> TritonModelException:
    return TritonModelException(
        f"{failure}: Failed to process the request for model '{instance.name}', message: {reason}"
    )


def _check_labels(instance: Instance, labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    if not all(isinstance(value, str) for value in labels.values()):
        raise _failure(
            instance, "Error when creating Metric", "attempt to access JSON non-string as string"
        )
    return {wire_text(str(name)): wire_text(value) for name, value in labels.items()}


def _check_buckets(kind: MetricKind, buckets: Any) -> list[float] | None:
    if buckets is not None and not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return None
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    return [
        _number("MetricFamily.Metric(labels: dict = None, buckets: List[float] = None)", bucket)
        for bucket in buckets
    ]


def _number(signature: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise signature_error(signature, value)
    return float(value)
