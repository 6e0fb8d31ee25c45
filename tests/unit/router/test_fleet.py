from __future__ import annotations

import math

import msgspec
import pytest

from naiad.errors import NaiadError
from naiad.router.config import ReplicaSpec, RouterConfig
from naiad.router.fleet import Fleet
from naiad.router.outlier import OutlierOptions
from naiad.router.replica import Replica, ReplicaState
from tests.unit.router.fleet_of import Seconds, add, fleet_of, names_of


def test_only_replicas_that_serve_the_model_are_candidates() -> None:
    fleet = fleet_of("a", "b")
    add(fleet, "c", 2, ("other",))
    assert names_of(fleet.candidates("m")) == ["a", "b"]
    assert names_of(fleet.candidates("other")) == ["c"]
    assert fleet.candidates("unknown") == []
    assert names_of(fleet.candidates("")) == ["a", "b", "c"]


def test_a_version_is_looked_for_where_versions_are_known() -> None:
    fleet = fleet_of("a", "b")
    fleet.set_models(fleet.find("b"), {"m": frozenset(("1", "2"))}, {})
    assert names_of(fleet.candidates("m", "2")) == ["b"]
    fleet.set_models(fleet.find("a"), {"m": frozenset()}, {})  # vLLM has no versions
    assert names_of(fleet.candidates("m", "2")) == ["a", "b"]


def test_replicas_that_are_not_ready_are_used_only_if_no_other_can() -> None:
    fleet = fleet_of("a", "b")
    fleet.set_state(fleet.find("a"), ReplicaState.NOT_READY, "status 400")
    assert names_of(fleet.candidates("m")) == ["b"]
    fleet.set_state(fleet.find("b"), ReplicaState.DOWN, "refused")
    assert names_of(fleet.candidates("m")) == ["a"]


def test_a_draining_replica_gets_nothing_new_until_it_resumes() -> None:
    fleet = fleet_of("a", "b")
    fleet.drain("a")
    assert names_of(fleet.candidates("m")) == ["b"]
    fleet.drain("a", is_draining=False)
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_a_removed_replica_goes_after_its_last_request() -> None:
    gone: list[Replica] = []
    fleet = fleet_of("a", "b")
    fleet._on_removed = gone.append
    replica = fleet.find("a")
    fleet.on_sent(replica)
    fleet.remove("a")
    assert gone == []
    assert names_of(fleet.candidates("m")) == ["b"]
    fleet.on_ended(replica)
    assert gone == [replica]
    assert not fleet.leaving


def test_an_open_breaker_excludes_a_replica_and_half_open_admits_one_request() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    replica = fleet.find("a")
    for _ in range(3):
        fleet.on_sent(replica)
        fleet.on_failure(replica, "lost")
        fleet.on_ended(replica)
    assert names_of(fleet.candidates("m")) == ["b"]
    clock.now_s += 1.01
    assert names_of(fleet.candidates("m")) == ["a", "b"]
    fleet.on_sent(replica)
    assert names_of(fleet.candidates("m")) == ["b"]
    fleet.on_response(replica, "m", is_error=False, duration_s=0.01)
    fleet.on_ended(replica)
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_a_trial_that_is_cancelled_does_not_exclude_the_replica_for_ever() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    replica = fleet.find("a")
    for _ in range(3):
        fleet.on_failure(replica, "lost")
    clock.now_s += 1.01
    assert replica in fleet.candidates("m")
    fleet.on_sent(replica)
    fleet.on_ended(replica)
    assert replica in fleet.candidates("m")


def test_retry_after_is_the_wait_of_the_breaker_that_ends_first() -> None:
    clock = Seconds()
    fleet = fleet_of("a", clock_s=clock)
    assert fleet.retry_after_s() == 1
    replica = fleet.find("a")
    for _ in range(3):
        fleet.on_failure(replica, "lost")
    for _ in range(3):  # the wait doubles: 2, 4, 8 s
        clock.now_s = replica.breaker.retry_s
        assert fleet.candidates("m") == [replica]
        fleet.on_sent(replica)
        fleet.on_failure(replica, "lost")
        fleet.on_ended(replica)
    assert fleet.candidates("m") == []
    assert fleet.retry_after_s() == 8


def fail(fleet_name: str, count: int, clock: Seconds) -> list[str]:
    fleet = fleet_of("a", "b", "c", clock_s=clock)
    for _ in range(count):
        fleet.on_response(fleet.find(fleet_name), "m", is_error=True, duration_s=0.01)
    return names_of(fleet.candidates("m"))


def test_errors_in_a_row_eject_a_replica_for_the_model() -> None:
    clock = Seconds()
    assert fail("a", 4, clock) == ["a", "b", "c"]
    assert fail("a", 5, clock) == ["b", "c"]


def test_an_ejection_concerns_one_model_and_ends() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock, models=("m", "n"))
    for _ in range(5):
        fleet.on_response(fleet.find("a"), "m", is_error=True, duration_s=0.01)
    assert names_of(fleet.candidates("m")) == ["b"]
    assert names_of(fleet.candidates("n")) == ["a", "b"]
    clock.now_s += 10.1
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_errors_everywhere_eject_at_most_half_of_the_replicas() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    for replica in fleet:
        for _ in range(20):
            fleet.on_response(replica, "m", is_error=True, duration_s=0.01)
    assert len(fleet.candidates("m")) == 2


def test_a_success_between_errors_prevents_an_ejection() -> None:
    fleet = fleet_of("a", "b")
    for number in range(20):
        fleet.on_response(fleet.find("a"), "m", is_error=number % 4 != 0, duration_s=0.01)
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def respond(fleet_names: dict[str, float], count: int = 30) -> list[str]:
    fleet = fleet_of(*fleet_names)
    for name, duration_s in fleet_names.items():
        for _ in range(count):
            fleet.on_response(fleet.find(name), "m", is_error=False, duration_s=duration_s)
    fleet.evaluate()
    return names_of(fleet.candidates("m"))


def test_a_replica_that_is_far_slower_is_ejected() -> None:
    assert respond({"a": 0.9, "b": 0.1, "c": 0.12}) == ["b", "c"]
    assert respond({"a": 0.9, "b": 0.1}) == ["b"]


def test_a_replica_that_is_a_little_slower_or_has_few_requests_stays() -> None:
    assert respond({"a": 0.4, "b": 0.1, "c": 0.12}) == ["a", "b", "c"]
    assert respond({"a": 0.9, "b": 0.1, "c": 0.12}, count=10) == ["a", "b", "c"]
    assert respond({"a": 0.009, "b": 0.001, "c": 0.001}) == ["a", "b", "c"]


def test_latency_ejection_can_be_switched_off() -> None:
    config = RouterConfig(outlier=OutlierOptions(latency_factor=0))
    fleet = fleet_of("a", "b", config=config)
    for name, duration_s in (("a", 9.0), ("b", 0.1)):
        for _ in range(50):
            fleet.on_response(fleet.find(name), "m", is_error=False, duration_s=duration_s)
    fleet.evaluate()
    assert len(fleet.candidates("m")) == 2


def test_ejected_replicas_are_used_when_nobody_else_is_left() -> None:
    fleet = fleet_of("a", "b")
    for _ in range(5):
        fleet.on_response(fleet.find("a"), "m", is_error=True, duration_s=0.01)
    fleet.set_state(fleet.find("b"), ReplicaState.DOWN, "refused")
    assert names_of(fleet.candidates("m")) == ["a"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ReplicaSpec("http://10.0.0.9:8000", name="a"), "the name 'a' already"),
        (ReplicaSpec("http://10.0.0.1:8000", name="x"), "'a' has the url"),
        (ReplicaSpec("ftp://10.0.0.9"), "is not an address"),
    ],
)
def test_rejects_a_replica_that_cannot_be_added(spec: ReplicaSpec, message: str) -> None:
    fleet = fleet_of("a")
    with pytest.raises(NaiadError, match=message):
        fleet.add(spec, "api")


def test_names_the_replicas_when_one_is_not_found() -> None:
    with pytest.raises(NaiadError, match="no replica 'x'; the replicas are a, b"):
        fleet_of("a", "b").find("x")


def test_follows_a_file_and_leaves_other_sources_alone() -> None:
    fleet = fleet_of("flag")
    one, two = ReplicaSpec("http://10.1.0.1:80", name="one"), ReplicaSpec("http://10.1.0.2:80")
    fleet.follow((one, two), "file")
    kept = fleet.find("one")
    assert sorted(fleet.replicas) == ["10.1.0.2:80", "flag", "one"]
    moved = msgspec.structs.replace(two, grpc="10.1.0.2:81")
    fleet.follow((one, moved), "file")
    assert fleet.find("one") is kept
    assert fleet.find("10.1.0.2:80").spec is moved
    fleet.follow((), "file")
    assert sorted(fleet.replicas) == ["flag"]


def test_a_file_with_a_replica_that_exists_elsewhere_does_not_stop_the_others() -> None:
    fleet = fleet_of("a")
    fleet.follow(
        (ReplicaSpec("http://10.0.0.1:8000", name="x"), ReplicaSpec("http://10.9.9.9:80")), "file"
    )
    assert sorted(fleet.replicas) == ["10.9.9.9:80", "a"]


# What the router knows of a replica's ports, refusals and past.


def test_grpc_goes_only_to_replicas_with_a_grpc_port() -> None:
    fleet = fleet_of("a")
    fleet.add(ReplicaSpec("http://10.0.0.2:8000", grpc="10.0.0.2:8001", name="b"), "flag")
    fleet.set_models(fleet.find("b"), {"m": frozenset(("1",))}, {})
    fleet.set_state(fleet.find("b"), ReplicaState.READY, "")
    assert names_of(fleet.candidates("m")) == ["a", "b"]
    assert names_of(fleet.candidates("m", is_grpc=True)) == ["b"]


def test_each_port_has_a_breaker() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock, has_grpc=True)
    replica = fleet.find("a")
    for _ in range(3):
        fleet.on_failure(replica, "connect_failures", is_grpc=True)
    # Responses and health checks over HTTP say nothing about the gRPC port.
    fleet.on_response(replica, "m", is_error=False, duration_s=0.01)
    fleet.set_state(replica, ReplicaState.READY, "")
    assert names_of(fleet.candidates("m", is_grpc=True)) == ["b"]
    assert names_of(fleet.candidates("m")) == ["a", "b"]
    fleet.set_reachable(replica, is_grpc=True)
    assert names_of(fleet.candidates("m", is_grpc=True)) == ["a", "b"]


@pytest.mark.parametrize(("retry_after_s", "rest_s"), [(-1, 0.1), (0, 0.1), (2, 2.0), (999, 30.0)])
def test_a_replica_that_refuses_is_left_out_for_the_model(
    retry_after_s: float, rest_s: float
) -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock, models=("m", "n"))
    fleet.on_refusal(fleet.find("a"), "m", retry_after_s)
    clock.now_s += rest_s * 0.9
    assert names_of(fleet.candidates("m")) == ["b"]
    assert names_of(fleet.candidates("n")) == ["a", "b"]
    assert names_of(fleet.candidates("m", avoids_busy=False)) == ["a", "b"]
    clock.now_s += rest_s * 0.2
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_replicas_that_refuse_are_used_before_those_that_are_not_ready() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.set_state(fleet.find("c"), ReplicaState.NOT_READY, "loading")
    for name in ("a", "b"):
        fleet.on_refusal(fleet.find(name), "m", -1)
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_lasting_refusals_eject_a_replica() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    ejections = []
    for _ in range(5):
        clock.now_s += 0.2
        for _ in range(20):  # a burst says the same thing
            fleet.on_refusal(fleet.find("a"), "m", -1)
        ejections.append(fleet.find("a").counters["ejections"])
    assert ejections == [0, 0, 0, 0, 1]
    clock.now_s += 5
    assert names_of(fleet.candidates("m")) == ["b"]
    clock.now_s += 6
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_a_success_between_refusals_prevents_an_ejection() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    for number in range(40):
        clock.now_s += 0.2
        fleet.on_refusal(fleet.find("a"), "m", -1)
        if number % 4 == 0:
            fleet.on_response(fleet.find("a"), "m", is_error=False, duration_s=0.01)
    assert fleet.find("a").counters["ejections"] == 0


def note(fleet: Fleet, name: str, durations_s: list[float], sent_s: float = math.inf) -> None:
    for duration_s in durations_s:
        fleet.on_response(
            fleet.find(name), "m", is_error=False, duration_s=duration_s, sent_s=sent_s
        )


def test_a_far_slower_replica_is_found_although_it_gets_few_requests() -> None:
    """FOUND G14: 1.5 s beside 2 ms, and never ejected."""
    fleet = fleet_of("a", "b", "c")
    for _ in range(2):
        note(fleet, "a", [0.002] * 400)
        note(fleet, "b", [0.002] * 400)
        note(fleet, "c", [1.5] * 4)
        fleet.evaluate()
    assert names_of(fleet.candidates("m")) == ["a", "b"]


def test_durations_wait_for_more_and_are_forgotten_then() -> None:
    fleet = fleet_of("a", "b", "c")
    for _ in range(30):
        note(fleet, "a", [0.002] * 30)
        note(fleet, "b", [0.002] * 30)
        fleet.evaluate()
    note(fleet, "c", [1.5] * 4)
    for _ in range(30):
        fleet.evaluate()
    note(fleet, "c", [1.5])
    note(fleet, "a", [0.002] * 30)
    fleet.evaluate()
    assert names_of(fleet.candidates("m")) == ["a", "b", "c"]


def test_a_few_slow_responses_do_not_make_a_slow_replica() -> None:
    """FOUND_2 N7: the durations of one or two requests that hung made the mean."""
    fleet = fleet_of("a", "b", "c")
    for name in ("a", "b", "c"):
        note(fleet, name, [0.002] * 28)
    note(fleet, "c", [30.0, 20.0])
    fleet.evaluate()
    assert names_of(fleet.candidates("m")) == ["a", "b", "c"]


def test_what_was_under_way_in_an_outage_does_not_judge_the_replica_afterwards() -> None:
    """FOUND_2 N7 and N8."""
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    replica = fleet.find("a")
    sent_s = clock.now_s
    clock.now_s += 5
    fleet.set_state(replica, ReplicaState.DOWN, "no response")
    clock.now_s += 30
    fleet.set_state(replica, ReplicaState.READY, "")
    note(fleet, "b", [0.002] * 40)
    note(fleet, "a", [30.0] * 40, sent_s)
    fleet.evaluate()
    for _ in range(9):
        fleet.on_failure(replica, "lost", sent_s=sent_s)
        fleet.on_response(replica, "m", is_error=True, duration_s=30.0, sent_s=sent_s)
    assert names_of(fleet.candidates("m")) == ["a", "b"]
    for _ in range(3):
        fleet.on_failure(replica, "lost", sent_s=clock.now_s)
    assert names_of(fleet.candidates("m")) == ["b"]


def test_ejections_are_forgiven_in_time() -> None:
    clock = Seconds()
    fleet = fleet_of("a", "b", clock_s=clock)
    record = fleet.find("a").record("m")

    def eject() -> float:
        for _ in range(5):
            fleet.on_response(fleet.find("a"), "m", is_error=True, duration_s=0.01)
        return record.ejected_until_s - clock.now_s

    lasted_s = []
    for _ in range(3):
        lasted_s.append(eject())
        clock.now_s = record.ejected_until_s + 0.1
        fleet.evaluate()
    assert lasted_s == [10, 20, 30]
    for _ in range(3):
        clock.now_s += 30
        fleet.evaluate()
    assert eject() == pytest.approx(10)
    before_s = record.ejected_until_s
    assert eject() == pytest.approx(10)  # what it had got before does not prolong it
    assert record.ejected_until_s == before_s
