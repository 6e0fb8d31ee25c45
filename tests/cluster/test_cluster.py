"""A real Ray cluster of three raylets on this machine: apply, scale, roll, drain, and faults under
load. The tests share the cluster and run in this order."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:  # Importing Ray reads its environment too early.
    pytest.skip("Ray is not installed", allow_module_level=True)

from naiad.cluster.server_process import read_process
from tests.cluster.rig import Rig, deployment, make_rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # Ray puts sockets below this folder, so its path must be short.
    with make_rig(tmp_path_factory.mktemp("c")) as made:
        made.add_node("a", zone="x")
        made.add_node("b", zone="y")
        made.start_controller()
        yield made


class Load:
    """Clients that send requests until they are stopped, and count what is not 200."""

    def __init__(self, rig: Rig, num_clients: int = 4) -> None:
        self._rig = rig
        self._is_stopping = threading.Event()
        self.num_served = 0
        self.failures: list[int] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(num_clients)]

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            status = self._rig.infer()
            if status == 200:
                self.num_served += 1
            else:
                self.failures.append(status)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()


def rows(status: dict[str, Any], name: str = "d") -> list[dict[str, Any]]:
    found = next(each for each in status["deployments"] if each["name"] == name)
    replicas: list[dict[str, Any]] = found["replicas"]
    return replicas


def pid_of(rig: Rig, row: dict[str, Any]) -> int:
    described = read_process(rig.folder / "nodes" / row["node"] / row["name"])
    assert described is not None
    return described.pid


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


def test_an_update_rolls_without_a_failed_request(rig: Rig) -> None:
    before = {row["name"] for row in rows(rig.settle())}
    with Load(rig) as load:
        rig.apply([deployment("d", "add_sub", replicas=2, environment={"STEP": "2"})])
        status = rig.settle(180)
    assert load.failures == []
    assert load.num_served > 0
    assert not before & {row["name"] for row in rows(status)}


def test_a_killed_server_is_replaced_and_nothing_is_lost(rig: Rig) -> None:
    status = rig.settle()
    row = rows(status)[0]
    with Load(rig) as load:
        os.kill(pid_of(rig, row), signal.SIGKILL)
        rig.wait(lambda found: any(each["restarts"] > 0 for each in rows(found)))
        rig.settle()
    assert load.failures == []


def test_a_killed_supervisor_finds_its_server_again(rig: Rig) -> None:
    status = rig.settle()
    row = rows(status)[0]
    pid = pid_of(rig, row)
    supervisor = row["supervisor_pid"]
    with Load(rig) as load:
        os.kill(supervisor, signal.SIGKILL)
        rig.wait(
            lambda found: all(each["supervisor_pid"] not in (0, supervisor) for each in rows(found))
        )
        rig.settle()
    assert pid_of(rig, row) == pid, "the server went on"
    assert load.failures == []


def test_a_drained_node_has_no_replicas_and_no_request_fails(rig: Rig) -> None:
    rig.settle()
    with Load(rig) as load:
        assert rig.call("drain", "a", True) == ""
        status = rig.wait(
            lambda found: (
                bool(found["is_settled"]) and all(row["node"] != "a" for row in rows(found))
            ),
            180,
        )
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


def test_a_lost_raylet_is_replaced(rig: Rig) -> None:
    rules = {"nodes": ["b", "head"]}
    spec = [deployment("d", "add_sub", replicas=2, environment={"STEP": "2"}, placement=rules)]
    rig.apply(spec)
    rig.settle(180)
    with Load(rig) as load:
        rig.remove_node("b")
        status = rig.wait(
            lambda found: (
                all(row["node"] == "head" for row in rows(found)) and bool(found["is_settled"])
            ),
            180,
        )
    assert load.failures == []
    assert len(rows(status)) == 2


def test_serving_goes_on_without_rays_head(rig: Rig) -> None:
    rig.settle()
    gcs = rig.gcs_pid()
    os.kill(gcs, signal.SIGKILL)
    end_s = time.monotonic() + 5
    num_served = 0
    while time.monotonic() < end_s:
        assert rig.infer() == 200
        num_served += 1
    assert num_served > 5
    state = json.loads((rig.folder / "controller" / "state.json").read_text())
    assert [each["name"] for each in state["spec"]["deployment"]] == ["d"]


def test_nothing_is_left_behind(rig: Rig) -> None:
    rig.end_servers()
    left = list(Path(rig.folder).glob("nodes/*/*/process.json"))
    assert left == []
