from __future__ import annotations

from naiad.cluster.autoscale import Autoscaler, LoadSample
from naiad.cluster.router_load import parse_router_load, quantile
from naiad.cluster.spec import AutoscalingSpec
from naiad.cluster.supervisor import first_token_buckets

SPEC = AutoscalingSpec(
    min_replicas=0,
    max_replicas=4,
    target_queue=2,
    scale_up_after="5s",
    scale_down_after="60s",
)


def run(scaler: Autoscaler, load: float, seconds: range, count: int, ms: float = 0.0) -> int:
    for second in seconds:
        count = scaler.decide(LoadSample(float(second), load, ms), count)
    return count


def test_a_lasting_queue_adds_replicas() -> None:
    assert run(Autoscaler(SPEC), 6, range(4), 1) == 1, "a short queue changes nothing"
    assert run(Autoscaler(SPEC), 6, range(10), 1) == 3
    assert run(Autoscaler(SPEC), 600, range(10), 1) == 4, "max_replicas is the limit"


def test_a_pause_that_lasts_takes_replicas_away() -> None:
    scaler = Autoscaler(SPEC)
    assert run(scaler, 0, range(40), 3) == 3, "a short pause changes nothing"
    assert run(scaler, 0, range(40, 70), 3) == 0


def test_a_burst_within_the_pause_keeps_them() -> None:
    scaler = Autoscaler(SPEC)
    count = run(scaler, 0, range(50), 3)
    count = run(scaler, 6, range(50, 51), count)
    assert run(scaler, 0, range(51, 100), count) == 3


def test_a_request_wakes_a_deployment_that_sleeps_at_once() -> None:
    assert Autoscaler(SPEC).decide(LoadSample(0.0, 1), 0) == 1


def test_slow_first_tokens_add_replicas() -> None:
    spec = AutoscalingSpec(
        max_replicas=8, target_queue=100, target_first_token_ms=200, scale_up_after="5s"
    )
    assert run(Autoscaler(spec), 4, range(10), 2, ms=390.0) > 2
    assert run(Autoscaler(spec), 4, range(10), 2, ms=150.0) == 2


def test_the_routers_page_is_read() -> None:
    page = (
        "# HELP naiad_router_replica_in_flight Requests\n"
        'naiad_router_replica_in_flight{replica="a-1"} 3\n'
        'naiad_router_replica_in_flight{replica="a-2"} 1\n'
        'naiad_router_waiting_requests{model="digits"} 2\n'
    )
    load = parse_router_load(page)
    assert load.in_flight == {"a-1": 3.0, "a-2": 1.0}
    assert load.waiting == {"digits": 2.0}
    assert load.is_known


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    buckets = {"0.1": 50.0, "0.5": 95.0, "+Inf": 100.0}
    assert quantile(buckets, 0.5) == 0.1
    assert quantile(buckets, 0.9) == 0.5
    assert quantile(buckets, 1.0) == 0.5
    assert quantile({}, 0.9) == 0.0
    assert quantile({"0.1": 0.0, "+Inf": 0.0}, 0.9) == 0.0


def test_first_tokens_of_all_models_are_added() -> None:
    name = "vllm:time_to_first_token_seconds_bucket"
    page = f'{name}{{model="a",le="0.1"}} 2\n{name}{{model="b",le="0.1"}} 3\nother 1\n'
    assert first_token_buckets(page) == {"0.1": 5.0}
