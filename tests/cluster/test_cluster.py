"""A real Ray cluster of three raylets on this machine: apply, scale, roll, drain, sleep. The tests
share the cluster and run in this order; test_faults.py goes on with it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from naiad.cluster.command import command
from tests.cluster.load import Load
from tests.cluster.rig import Rig, deployment, rows


def test_apply_places_replicas_and_the_router_answers(rig: Rig) -> None:
    rules = {"max_replicas_per_node": 1, "nodes": ["a", "b"]}
    rig.apply([deployment("d", "add_sub", replicas=2, placement=rules)])
    status = rig.settle()
    assert sorted(row["node"] for row in rows(status)) == ["a", "b"]
    assert rig.infer() == 200
    assert rig.infer("no_such_model") == 404


def test_a_demand_that_cannot_be_met_says_why_and_stops_nothing(rig: Rig) -> None:
    rules = {"max_replicas_per_node": 1, "require": {"zone": "x|y"}}
    rig.apply([deployment("d", "add_sub", replicas=3, placement=rules)])
    status = rig.wait(lambda found: bool(found["deployments"][0]["problem"]))
    problem = status["deployments"][0]["problem"]
    assert "a: has 1 replicas of it, max_replicas_per_node is 1" in problem
    assert "head: requires zone=x|y, does not have the label" in problem
    assert rig.infer() == 200
    rig.apply([deployment("d", "add_sub", replicas=2, placement=rules)])
    rig.settle()


def test_models_that_no_node_has_are_refused(rig: Rig) -> None:
    before = {row["name"] for row in rows(rig.settle())}
    with pytest.raises(AssertionError, match="has no model 'addsub', did you mean 'add_sub'"):
        rig.apply([deployment("d", "addsub", replicas=2)])
    with pytest.raises(AssertionError, match="this node has no folder '/nowhere'"):
        rig.apply([deployment("d", "add_sub", replicas=2, repository="/nowhere")])
    assert {row["name"] for row in rows(rig.settle())} == before


def test_an_update_rolls_without_a_failed_request(rig: Rig) -> None:
    before = {row["name"] for row in rows(rig.settle())}
    with Load(rig) as load:
        rig.apply([deployment("d", "add_sub", replicas=2, environment={"STEP": "2"})])
        status = rig.settle(180)
    assert load.failures == []
    assert load.num_served > 0
    assert not before & {row["name"] for row in rows(status)}


def test_a_drained_node_has_no_replicas_and_no_request_fails(rig: Rig) -> None:
    rig.settle()
    with Load(rig) as load:
        done = CliRunner().invoke(command, ["drain", "a", "--wait", "--timeout=180"])
        assert done.exit_code == 0, done.output
        status = rig.call("status")
        assert all(row["node"] != "a" for row in rows(status))
        rig.settle(180)
    assert load.failures == []
    assert rig.call("drain", "a", False) == ""
    assert "there is no node" in rig.call("drain", "z", True)
    assert len(rows(status)) == 2


def test_a_policy_of_ones_own_decides(rig: Rig) -> None:
    rules = {"policy": "tests.cluster.policies:FirstByName"}
    both = [
        deployment("d", "add_sub", replicas=2, environment={"STEP": "2"}),
        deployment("own", "identity_fp32", replicas=1, placement=rules),
    ]
    rig.apply(both)
    [row] = rows(rig.settle(), "own")
    assert row["node"] == "a"
    assert row["placed_because"] == "policy tests.cluster.policies:FirstByName chose it"


def test_a_deployment_sleeps_and_wakes_by_a_request(rig: Rig) -> None:
    scaling = {"min_replicas": 0, "max_replicas": 1, "scale_down_after": "5s"}
    rig.apply(
        [
            deployment("d", "add_sub", replicas=2, environment={"STEP": "2"}),
            deployment("own", "identity_fp32", autoscaling=scaling),
        ]
    )
    rig.wait(lambda found: rows(found, "own") == [] and bool(found["is_settled"]))
    assert rig.infer("identity_fp32") in (200, 400), "the request waited for its replica"
    rig.wait(lambda found: rows(found, "own") == [] and bool(found["is_settled"]), 90)
