import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from naiad.errors import NaiadError
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.exposition import page
from naiad.metrics.operation import MetricOperation


def shown(custom: CustomMetrics) -> list[str]:
    return page(custom.blocks()).decode().splitlines()


def error_message(custom: CustomMetrics, operation: MetricOperation, owner: str = "a") -> str:
    with pytest.raises(NaiadError) as failure:
        custom.apply(owner, operation)
    return failure.value.message


def family(
    custom: CustomMetrics,
    kind: str = "counter",
    name: str = "cnt",
    owner: str = "a",
    description: str = "d",
) -> int:
    return int(
        custom.apply(
            owner,
            MetricOperation("create_family", name=name, description=description, metric_kind=kind),
        )
    )


def metric(
    custom: CustomMetrics,
    handle: int,
    labels: dict[str, str] | None = None,
    buckets: list[float] | None = None,
    owner: str = "a",
) -> int:
    return int(
        custom.apply(
            owner, MetricOperation("create_metric", handle, labels=labels or {}, buckets=buckets)
        )
    )


def test_counter() -> None:
    custom = CustomMetrics()
    handle = metric(custom, family(custom), {"b": "1", "a": "x"})
    custom.apply("a", MetricOperation("increment", handle, value=2))
    custom.apply("a", MetricOperation("increment", handle, value=3.5))
    assert custom.apply("a", MetricOperation("value", handle)) == 5.5
    assert shown(custom) == ["# HELP cnt d", "# TYPE cnt counter", 'cnt{a="x",b="1"} 5.5']


def test_gauge() -> None:
    custom = CustomMetrics()
    handle = metric(custom, family(custom, "GAUGE"))
    custom.apply("a", MetricOperation("set", handle, value=-3.25))
    custom.apply("a", MetricOperation("increment", handle, value=-1))
    assert shown(custom)[-1] == "cnt -4.25"


def test_histogram() -> None:
    custom = CustomMetrics()
    handle = metric(custom, family(custom, "histogram"), {"l": "v"}, [0.1, 1, 10])
    for value in (0.5, 1, 1e9):
        custom.apply("a", MetricOperation("observe", handle, value=value))
    assert shown(custom)[2:] == [
        'cnt_count{l="v"} 3', 'cnt_sum{l="v"} 1000000001.5',
        'cnt_bucket{l="v",le="0.1"} 0', 'cnt_bucket{l="v",le="1"} 2',
        'cnt_bucket{l="v",le="10"} 2', 'cnt_bucket{l="v",le="+Inf"} 3',
    ]  # fmt: skip


def test_shows_the_infinity_bucket_once() -> None:
    custom = CustomMetrics()
    metric(custom, family(custom, "histogram"), {}, [1, math.inf])
    assert sum("+Inf" in line for line in shown(custom)) == 1


@pytest.mark.parametrize(
    ("kind", "operation", "expected"),
    [
        ("counter", "set", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        ("counter", "observe", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        ("gauge", "observe", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
        ("histogram", "increment", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        ("histogram", "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
        ("histogram", "value", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
    ],
)
def test_rejects_operations_that_a_kind_does_not_support(
    kind: str, operation: str, expected: str
) -> None:
    custom = CustomMetrics()
    handle = metric(custom, family(custom, kind), {}, [1] if kind == "histogram" else None)
    assert error_message(custom, MetricOperation(operation, handle, value=1)) == expected


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_rejects_negative_and_nan_increments_of_a_counter(value: float) -> None:
    custom = CustomMetrics()
    handle = metric(custom, family(custom))
    expected = (
        "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative "
        "values."
    )
    assert error_message(custom, MetricOperation("increment", handle, value=value)) == expected


@pytest.mark.parametrize(
    ("kind", "labels", "buckets", "expected"),
    [
        ("histogram", {}, [3.0, 1.0], "Bucket Boundaries must be strictly sorted"),
        ("histogram", {}, [1.0, 1.0], "Bucket Boundaries must be strictly sorted"),
        ("histogram", {}, [math.nan], "Bucket Boundaries must be strictly sorted"),
        ("histogram", {}, None, "Bucket boundaries not found in Metric args."),
        ("gauge", {}, [1.0], "Unexpected args found in gauge Metric constructor."),
        ("gauge", {"x y": "1"}, None, "Invalid label name"),
        ("gauge", {"": "1"}, None, "Invalid label name"),
        ("gauge", {"__x": "1"}, None, "Invalid label name"),
        ("gauge", {"1": "1"}, None, "Invalid label name"),
        ("histogram", {"le": "1"}, [1.0], "Invalid label name"),
    ],
)
def test_rejects_invalid_labels_and_buckets(
    kind: str, labels: dict[str, str], buckets: list[float] | None, expected: str
) -> None:
    custom = CustomMetrics()
    parent = family(custom, kind)
    assert (
        error_message(
            custom, MetricOperation("create_metric", parent, labels=labels, buckets=buckets)
        )
        == expected
    )
    assert shown(custom) == []


@pytest.mark.parametrize("name", ["", "bad name", "1x", "__r", "ä"])
def test_rejects_invalid_family_names(name: str) -> None:
    operation = MetricOperation("create_family", name=name, description="d", metric_kind="gauge")
    assert error_message(CustomMetrics(), operation) == "Invalid metric name"


def test_rejects_unknown_kinds() -> None:
    operation = MetricOperation("create_family", name="x", description="d", metric_kind="summary")
    assert (
        error_message(CustomMetrics(), operation)
        == "Unsupported kind passed to MetricFamily constructor."
    )
    assert (
        error_message(CustomMetrics(), MetricOperation("explode"))
        == "unknown metric operation 'explode'"
    )


def test_rejects_a_used_name_with_another_kind() -> None:
    custom = CustomMetrics()
    custom.reserve({"nv_inference_count": "counter"})
    family(custom, "gauge", "g")
    expected = "Family name already exists with different type"
    assert (
        error_message(
            custom,
            MetricOperation("create_family", name="g", description="d", metric_kind="counter"),
        )
        == expected
    )
    assert (
        error_message(
            custom, MetricOperation("create_family", name="nv_inference_count", metric_kind="gauge")
        )
        == expected
    )
    family(custom, "counter", "nv_inference_count")


def test_owners_share_families_and_metrics() -> None:
    custom = CustomMetrics()
    first = metric(custom, family(custom), {"l": "v"})
    second = metric(
        custom, family(custom, owner="b", description="other text"), {"l": "v"}, owner="b"
    )
    custom.apply("a", MetricOperation("increment", first, value=1))
    custom.apply("b", MetricOperation("increment", second, value=2))
    assert custom.apply("a", MetricOperation("value", first)) == 3
    assert shown(custom) == ["# HELP cnt d", "# TYPE cnt counter", 'cnt{l="v"} 3']
    custom.drop_owner("a")
    assert shown(custom)[-1] == 'cnt{l="v"} 3'
    custom.drop_owner("b")
    assert shown(custom) == []


def test_a_shared_histogram_keeps_its_first_buckets() -> None:
    custom = CustomMetrics()
    parent = family(custom, "histogram")
    metric(custom, parent, {"l": "v"}, [1, 2])
    metric(custom, parent, {"l": "v"}, [7])
    assert 'cnt_bucket{l="v",le="2"} 0' in shown(custom)
    assert 'cnt_bucket{l="v",le="7"} 0' not in shown(custom)


def test_deletes_a_metric_and_its_family() -> None:
    custom = CustomMetrics()
    parent = family(custom, "gauge")
    first, second = metric(custom, parent, {"n": "1"}), metric(custom, parent, {"n": "2"})
    custom.apply("a", MetricOperation("delete_metric", first))
    assert [line for line in shown(custom) if not line.startswith("#")] == ['cnt{n="2"} 0']
    custom.apply("a", MetricOperation("delete_family", parent))
    assert shown(custom) == []
    message = error_message(custom, MetricOperation("set", second, value=1))
    assert message == (
        "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. "
        "The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have "
        "been deleted."
    )
    assert error_message(custom, MetricOperation("create_metric", parent)) == message
    custom.apply("a", MetricOperation("delete_metric", second))
    custom.apply("a", MetricOperation("delete_family", parent))
    family(custom, "counter")  # the name is free again, for another kind too


def test_an_owner_cannot_use_the_handles_of_another() -> None:
    custom = CustomMetrics()
    parent = family(custom, "gauge")
    handle = metric(custom, parent)
    for operation in ("set", "increment", "value"):
        assert "has been deleted" in error_message(
            custom, MetricOperation(operation, handle, value=1), "b"
        )
    assert "has been deleted" in error_message(
        custom, MetricOperation("create_metric", parent), "b"
    )
    custom.apply("b", MetricOperation("delete_metric", handle))
    custom.apply("b", MetricOperation("delete_family", parent))
    assert shown(custom)[-1] == "cnt 0"


OWNERS, NAMES, LABELS = (
    st.sampled_from("ab"),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["1", "2"]),
)


class Lifetimes(RuleBasedStateMachine):
    """Compares with a simple model: a metric is shown exactly while it has a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.custom = CustomMetrics()
        self.families: dict[int, tuple[str, str]] = {}
        self.metrics: dict[int, tuple[int, str]] = {}

    @rule(owner=OWNERS, name=NAMES)
    def create_family(self, owner: str, name: str) -> None:
        self.families[family(self.custom, "gauge", name, owner)] = (owner, name)

    @rule(data=st.data(), label=LABELS)
    def create_metric(self, data: st.DataObject, label: str) -> None:
        if self.families:
            parent = data.draw(st.sampled_from(sorted(self.families)))
            self.metrics[
                metric(self.custom, parent, {"n": label}, owner=self.families[parent][0])
            ] = (parent, label)

    @rule(data=st.data())
    def delete_metric(self, data: st.DataObject) -> None:
        if self.metrics:
            handle = data.draw(st.sampled_from(sorted(self.metrics)))
            parent, _ = self.metrics.pop(handle)
            self.custom.delete_metric(self.families[parent][0], handle)

    @rule(data=st.data())
    def delete_family(self, data: st.DataObject) -> None:
        if self.families:
            handle = data.draw(st.sampled_from(sorted(self.families)))
            owner, _ = self.families.pop(handle)
            self.metrics = {
                number: entry for number, entry in self.metrics.items() if entry[0] != handle
            }
            self.custom.delete_family(owner, handle)

    @rule(owner=OWNERS)
    def drop_owner(self, owner: str) -> None:
        self.custom.drop_owner(owner)
        self.families = {
            handle: entry for handle, entry in self.families.items() if entry[0] != owner
        }
        self.metrics = {
            number: entry for number, entry in self.metrics.items() if entry[0] in self.families
        }

    @invariant()
    def shows_what_lives(self) -> None:
        expected = {
            f'{self.families[parent][1]}{{n="{label}"}} 0'
            for parent, label in self.metrics.values()
        }
        lines = [line for line in shown(self.custom) if not line.startswith("#")]
        assert sorted(lines) == sorted(expected)


TestLifetimes = Lifetimes.TestCase
TestLifetimes.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
