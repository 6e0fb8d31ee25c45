"""Rows of the models page: rates and percentiles from two readings."""

from __future__ import annotations

import pytest

from naiad.console.live import visible_rows
from naiad.console.model_reading import InstanceReading, ModelReading, StepReading
from naiad.console.model_row import Rates, build_rates, build_row, percentile_ms
from naiad.console.process_reading import ProcessReading
from naiad.core.identity import Identity

BOUNDS_NS = (1e6, 2e6, 4e6)


def reading(**fields: object) -> ModelReading:
    values: dict[str, object] = {"name": "m", "state": "READY", "bounds_ns": BOUNDS_NS}
    return ModelReading(**(values | fields))  # type: ignore[arg-type]


def test_rates_are_differences_per_second() -> None:
    old = reading(num_succeeded=10, num_failed=1, num_executions=5, num_inferences=10)
    new = reading(num_succeeded=30, num_failed=3, num_executions=10, num_inferences=30)
    rates = build_rates(new, old, 2.0)
    assert (rates.requests_per_s, rates.failures_per_s, rates.batch_size) == (10.0, 1.0, 4.0)


def test_nothing_is_measured_without_an_earlier_reading_or_after_a_reload() -> None:
    assert build_rates(reading(num_succeeded=5), None, 1.0) == Rates()
    assert build_rates(reading(num_succeeded=5), reading(num_succeeded=9), 1.0) == Rates()


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.5),
        ([0, 10, 0, 0], 0.5, 1.5),
        ([50, 49, 1, 0], 0.99, 2.0),
        ([0, 0, 0, 3], 0.5, 4.0),
    ],
)
def test_percentiles_are_interpolated_within_their_bucket(
    counts: list[int], fraction: float, expected: float | None
) -> None:
    assert percentile_ms(BOUNDS_NS, counts, fraction) == expected


def test_percentiles_count_only_requests_since_the_earlier_reading() -> None:
    old, new = reading(latencies=[1000, 0, 0, 0]), reading(latencies=[1000, 0, 10, 0])
    assert build_rates(new, old, 1.0).p50_ms == 3.0


def test_cpu_is_that_of_the_same_process() -> None:
    def instance(pid: int, cpu_s: float) -> InstanceReading:
        return InstanceReading("m_0", "ready", "CPU", pid, 0, ProcessReading(5 << 20, cpu_s))

    old = reading(instances=[instance(1, 10.0)])
    same = build_row(reading(instances=[instance(1, 11.0)]), old, 2.0)
    assert (same.instances[0].cpu, same.rates.cpu, same.memory_bytes) == (0.5, 0.5, 5 << 20)
    restarted = build_row(reading(instances=[instance(2, 11.0)]), old, 2.0)
    assert restarted.instances[0].cpu is None


def test_the_reason_has_the_line_of_the_file() -> None:
    reason = "Internal: KeyError: 'TOKEN'\n\nAt:\n  model.py(3): initialize\n"
    row = build_row(reading(state="UNAVAILABLE", reason=reason), None, 0.0)
    assert row.reason_line == "KeyError 'TOKEN' (model.py:3)"
    assert row.reason == reason


def test_a_model_that_was_unloaded_has_no_rates() -> None:
    old = reading(latencies=[3, 0, 0, 0], num_succeeded=3)
    unloaded = ModelReading(name="m", state="UNAVAILABLE", num_succeeded=3)
    assert build_rates(unloaded, old, 1.0) == Rates()
    assert build_rates(old, unloaded, 1.0) == Rates()


def test_a_key_does_not_see_hidden_models_among_the_steps_of_an_ensemble() -> None:
    steps = [StepReading("add", {"a": "b"}, {}), StepReading("secret_model", {}, {})]
    row = build_row(reading(name="add_twice", platform="ensemble", steps=steps), None, 1.0)
    for scopes in ({"statistics"}, {"statistics", "model-repository"}):
        identity = Identity("k", "k", scopes=frozenset(scopes), models=("add*",))
        (shown,) = visible_rows([row], identity)
        assert shown.steps == steps[:1]
    assert visible_rows([row], None) == [row]
