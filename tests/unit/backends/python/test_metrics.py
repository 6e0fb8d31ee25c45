"""Custom metrics: the operations sent to the server, and those that are rejected before."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from naiad.backends.python.error import TritonModelException
from naiad.backends.python.instance import Instance
from naiad.backends.python.metrics import MetricFamily, MetricKind
from naiad.errors import invalid_arg
from naiad.metrics.operation import MetricOperation
from tests.unit.backends.fake_runtime import FakeRuntime

PREFIX = "Failed to process the request for model 'm_0', message: "


def family(kind: MetricKind = MetricFamily.COUNTER) -> MetricFamily:
    return MetricFamily(name="requests", description="some", kind=kind)


def test_sends_operations_to_the_server(instance: Instance, runtime: FakeRuntime) -> None:
    gauges = family(MetricFamily.GAUGE)
    gauge = gauges.Metric(labels={"a": "1"})
    gauge.set(3)
    gauge.increment(np.float32(-0.5))  # type: ignore[arg-type]
    runtime.metric_value = 2.5
    assert gauge.value() == 2.5
    assert runtime.metrics == [
        MetricOperation("create_family", name="requests", description="some", metric_kind="GAUGE"),
        MetricOperation("create_metric", handle=1, metric_kind="GAUGE", labels={"a": "1"}),
        MetricOperation("set", handle=2, value=3.0),
        MetricOperation("increment", handle=2, value=-0.5),
        MetricOperation("value", handle=2),
    ]


def test_the_name_and_description_may_be_utf8_bytes_but_labels_may_not(
    instance: Instance, runtime: FakeRuntime
) -> None:
    counters = MetricFamily(b"requests", "grün".encode(), MetricFamily.COUNTER)
    assert (runtime.metrics[0].name, runtime.metrics[0].description) == ("requests", "grün")
    with pytest.raises(TritonModelException, match="attempt to access JSON non-string as string"):
        counters.Metric(labels={"a": b"1"})


def test_histogram(instance: Instance, runtime: FakeRuntime) -> None:
    histograms = family(MetricFamily.HISTOGRAM)
    histogram = histograms.Metric(buckets=[0.1, 1])
    histogram.observe(0.5)
    assert runtime.metrics[1].buckets == [0.1, 1.0]
    assert runtime.metrics[2] == MetricOperation("observe", handle=2, value=0.5)


@pytest.mark.parametrize(
    ("kind", "verb", "message"),
    [
        (
            "COUNTER",
            "set",
            "Failed to set metric value: {}TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        ),
        (
            "COUNTER",
            "observe",
            "Failed to observe metric value: {}TRITONSERVER_METRIC_KIND_COUNTER does not support "
            "Observe",
        ),
        (
            "GAUGE",
            "observe",
            "Failed to observe metric value: {}TRITONSERVER_METRIC_KIND_GAUGE does not support "
            "Observe",
        ),
        (
            "HISTOGRAM",
            "set",
            "Failed to set metric value: {}TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set",
        ),
        (
            "HISTOGRAM",
            "increment",
            "Failed to increment metric value: {}TRITONSERVER_METRIC_KIND_HISTOGRAM does not "
            "support Increment",
        ),
    ],
)
def test_rejects_operations_that_a_kind_does_not_support(
    instance: Instance, runtime: FakeRuntime, kind: str, verb: str, message: str
) -> None:
    metrics = family(MetricKind[kind])
    metric = metrics.Metric(buckets=[1.0] if kind == "HISTOGRAM" else None)
    with pytest.raises(TritonModelException) as caught:
        getattr(metric, verb)(1)
    assert str(caught.value) == message.format(PREFIX)
    assert len(runtime.metrics) == 2


def test_histogram_has_no_value_and_counters_only_grow(instance: Instance) -> None:
    histograms, counters = family(MetricFamily.HISTOGRAM), family()
    with pytest.raises(TritonModelException, match="HISTOGRAM does not support Value"):
        histograms.Metric(buckets=[1]).value()
    with pytest.raises(
        TritonModelException, match="can only be incremented monotonically by non-negative values"
    ):
        counters.Metric().increment(-1)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("COUNTER", {"labels": 5}, "Failed to create metric. Labels must be a dictionary."),
        ("COUNTER", {"buckets": 5}, "Failed to create metric. Buckets must be a list."),
        ("HISTOGRAM", {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
        ("GAUGE", {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        ("HISTOGRAM", {}, "Failed to create metric. Missing required buckets."),
        (
            "COUNTER",
            {"labels": {"a": 1}},
            f"Error when creating Metric: {PREFIX}attempt to access JSON non-string as string",
        ),
    ],
)
def test_rejects_invalid_metrics(
    instance: Instance, kind: str, options: dict[str, Any], message: str
) -> None:
    metrics = family(MetricKind[kind])
    with pytest.raises(TritonModelException) as caught:
        metrics.Metric(**options)
    assert str(caught.value) == message


def test_reports_errors_of_the_server(instance: Instance, runtime: FakeRuntime) -> None:
    metrics = family()
    runtime.rejection = invalid_arg("Invalid label name")
    with pytest.raises(TritonModelException) as caught:
        metrics.Metric({"bad-name": "a"})
    assert str(caught.value) == f"Error when creating Metric: {PREFIX}Invalid label name"
    with pytest.raises(
        TritonModelException,
        match=r"^Error when creating MetricFamily: Failed to process the request for model 'm_0'",
    ):
        family()


def test_rejects_wrong_types(instance: Instance) -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        MetricFamily("a", "b", 0)  # type: ignore[arg-type]
    counters, histograms = family(), family(MetricFamily.HISTOGRAM)
    with pytest.raises(TypeError, match=r"increment\(\): incompatible function arguments"):
        counters.Metric().increment("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        histograms.Metric(buckets=["a"])


def test_dropping_a_metric_deletes_it_in_the_server(
    instance: Instance, runtime: FakeRuntime
) -> None:
    counters = family()
    counter = counters.Metric()
    del counter
    gc.collect()
    assert runtime.metric_of_kind("delete_metric").handle == 2


def test_dropping_a_family_deletes_its_metrics(instance: Instance, runtime: FakeRuntime) -> None:
    counter = family().Metric()
    gc.collect()
    assert runtime.metric_of_kind("delete_family").handle == 1
    with pytest.raises(TritonModelException) as caught:
        counter.value()
    assert str(caught.value) == (
        "Failed to get metric value: Invalid metric operation as the corresponding "
        "'MetricFamily' has been deleted. The 'MetricFamily' "
        "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
    )
