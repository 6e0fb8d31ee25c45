"""The last hour of a model: points, gaps, events, bounds."""

from __future__ import annotations

from naiad.console.history import MAX_EVENTS, NUM_POINTS, History
from naiad.console.model_reading import ModelReading, VersionReading


def reading(name: str = "m", **fields: object) -> ModelReading:
    return ModelReading(name=name, **({"state": "READY"} | fields))  # type: ignore[arg-type]


def test_points_are_in_order_of_time_after_the_hour_wrapped() -> None:
    history = History()
    for index in range(NUM_POINTS + 7):
        history.add([reading(num_succeeded=index * 10)], 1000.0 + index * 10)
    shown = history.show("m")
    assert len(shown.times_s) == NUM_POINTS
    assert shown.times_s == sorted(shown.times_s)
    assert shown.times_s[-1] == 1000.0 + (NUM_POINTS + 6) * 10
    assert shown.series["requests_per_s"][-1] == 1.0


def test_the_first_point_has_no_rate_and_a_missing_model_leaves_a_gap() -> None:
    history = History()
    history.add([reading(num_queued=3)], 0.0)
    history.add([], 10.0)
    history.add([reading(num_queued=4)], 20.0)
    shown = history.show("m")
    assert shown.series["num_queued"] == [3.0, None, 4.0]
    assert shown.series["requests_per_s"] == [None, None, None]


def test_a_model_that_is_gone_for_an_hour_is_forgotten() -> None:
    history = History()
    history.add([reading("old")], 0.0)
    for index in range(NUM_POINTS):
        history.add([reading("new")], 10.0 * (index + 1))
    assert history.names() == ["new"]
    assert history.show("old").times_s == []


def test_changes_of_state_and_restarts_are_events() -> None:
    history = History()
    history.add([reading()], 0.0)
    history.add([reading(num_restarts=2)], 10.0)
    history.add([reading(state="UNAVAILABLE", num_restarts=2)], 20.0)
    texts = [event.text for event in history.show("m").events]
    assert texts == ["2 worker restarts", "READY → UNAVAILABLE"]


def test_events_are_bounded() -> None:
    history = History()
    history.add([reading()], 0.0)
    for index in range(MAX_EVENTS + 50):
        history.add([reading(num_restarts=index + 1)], float(index + 1))
    assert len(history.show("m").events) == MAX_EVENTS


def test_a_new_copy_of_a_model_is_a_deployment() -> None:
    history = History()
    versions = [VersionReading(3, "READY")]
    history.add([reading(load_s=1.5, versions=versions)], 0.0)
    history.add([reading(load_s=1.5, versions=versions)], 10.0)
    history.add([reading(load_s=1.6, versions=versions)], 20.0)
    (event,) = history.show("m").events
    assert (event.time_s, event.text) == (20.0, "loaded again, version 3")
