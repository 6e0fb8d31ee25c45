"""Faults of the cluster under load: what dies, hangs, is slow or is cut off is replaced, and no
inference that could be sent again is lost. The tests share the cluster of test_cluster.py."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from naiad.cluster.server_process import is_running, read_process
from tests.cluster.load import Load
from tests.cluster.rig import Rig, deployment, rows, write_moody
from tests.server.gates import eventually

HANG = {"hang_timeout": "5s"}


def pid_of(rig: Rig, row: dict[str, Any]) -> int:
    described = read_process(rig.folder / "nodes" / row["node"] / row["name"])
    assert described is not None
    return described.pid


def add_sub(**fields: Any) -> list[dict[str, Any]]:
    return [deployment("d", "add_sub", replicas=2, environment={"STEP": "2"}, **HANG, **fields)]


@pytest.fixture
def moody(rig: Rig) -> list[dict[str, Any]]:
    """A deployment whose replicas are slow or fail when a file says so."""
    repository = write_moody(rig.folder / "moody")
    return [
        deployment(
            "d",
            "moody",
            replicas=2,
            repository=str(repository),
            environment={"MOODS": str(rig.moods)},
        )
    ]


def test_a_killed_server_is_replaced_and_nothing_is_lost(rig: Rig) -> None:
    rig.apply(add_sub())
    status = rig.settle(180)
    row = rows(status)[0]
    with Load(rig) as load:
        os.kill(pid_of(rig, row), signal.SIGKILL)
        rig.wait(lambda found: any(each["restarts"] > 0 for each in rows(found)))
        rig.settle()
    assert load.failures == []


def test_a_server_that_hangs_is_replaced_and_nothing_is_lost(rig: Rig) -> None:
    row = rows(rig.settle())[0]
    pid = pid_of(rig, row)
    with Load(rig) as load:
        os.kill(pid, signal.SIGSTOP)
        rig.wait(lambda found: any(each["hangs"] > 0 for each in rows(found)))
        status = rig.settle()
    assert load.failures == []
    assert load.longest_s < 30, "requests of the server that hung moved to the other one"
    [same] = [each for each in rows(status) if each["name"] == row["name"]]
    assert same["node"] == row["node"]
    assert pid_of(rig, same) != pid
    assert not Path(f"/proc/{pid}").exists()


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


def controller_pid() -> int:
    """0 while there is none."""
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][0].startswith("ray::Controller"):
            return int(process.info["pid"])
    return 0


def test_a_controller_killed_ten_times_fails_no_request(rig: Rig) -> None:
    servers = {row["name"]: pid_of(rig, row) for row in rows(rig.settle())}
    with Load(rig) as load:
        for _ in range(10):
            pid = controller_pid()
            os.kill(pid, signal.SIGKILL)
            old = (0, pid)
            eventually(lambda old=old: controller_pid() not in old, "a new one", 60)  # type: ignore[misc]
            eventually(lambda: is_settled(rig), "settled", 60)
    assert load.failures == []
    assert load.num_served > 0
    assert {row["name"]: pid_of(rig, row) for row in rows(rig.settle())} == servers


def is_settled(rig: Rig) -> bool:
    try:
        return bool(rig.call("status")["is_settled"])
    except Exception:  # Ray's error while the actor is started again.
        return False


def test_a_killed_router_is_replaced_and_the_other_one_serves(rig: Rig) -> None:
    first = rig.settle()["router"]["routers"][0]
    with Load(rig) as load:
        os.kill(first["pid"], signal.SIGKILL)
        status = rig.wait(
            lambda found: (
                found["router"]["routers"][0]["pid"] not in (0, first["pid"])
                and bool(found["is_settled"])
            )
        )
    assert load.failures == []
    assert load.num_served > 0
    assert load.longest_s < 15
    assert [row["state"] for row in status["router"]["routers"]] == ["running", "running"]


def test_both_routers_know_the_nodes_of_the_replicas(rig: Rig) -> None:
    status = rig.settle()
    names = {row["name"]: row["node"] for row in rows(status)}
    for row in status["router"]["routers"]:
        page = rig.read(row["metrics"])
        for name, node in names.items():
            labels = f'router="{row["name"]}",node="{node}",replica="{name}"'
            assert f"naiad_router_replica_ready{{{labels}}} 1" in page
    for row in rows(status):
        page = rig.read(row["metrics"])
        assert f'nv_inference_count{{node="{row["node"]}",replica="{row["name"]}",' in page
    text, error = rig.call("last_lines", "d", 3)
    assert error == ""
    assert {line.split()[0] for line in text.splitlines()} == {
        f"[{node}/{name}]" for name, node in names.items()
    }


def test_a_slow_replica_gets_fewer_requests_and_nothing_is_lost(
    rig: Rig, moody: list[dict[str, Any]]
) -> None:
    rig.apply(moody)
    slow = rows(rig.settle(180))[0]["name"]
    with Load(rig, "moody", num_clients=8) as load:
        rig.set_mood(slow, "slow")
        status = rig.wait(
            lambda found: any(
                each["name"] == slow and each["ejected_models"] > 0 for each in rows(found)
            )
        )
        rig.set_mood(slow, "")
    assert load.failures == []
    assert [each["state"] for each in rows(status)] == ["ready", "ready"], "slow is not dead"


def test_a_replica_that_responds_with_errors_gets_no_more_requests(
    rig: Rig, moody: list[dict[str, Any]]
) -> None:
    rig.apply(moody)
    rig.settle(180)
    # At most half of the replicas are ejected at a time, so the slow one must be back.
    status = rig.wait(lambda found: all(not each["ejected_models"] for each in rows(found)))
    faulty = rows(status)[0]["name"]
    with Load(rig, "moody") as load:
        rig.set_mood(faulty, "error")
        rig.wait(
            lambda found: any(
                each["name"] == faulty and each["ejected_models"] > 0 for each in rows(found)
            )
        )
        before = len(load.failures)
        time.sleep(2.0)  # An ejection lasts for ten seconds.
        after = len(load.failures)
        rig.set_mood(faulty, "")
    # Each router needs five errors in a row, and each client may have one request there meanwhile.
    assert 5 <= before <= 2 * (5 + 4)
    assert after == before
    assert set(load.failures) == {500}


def test_a_node_that_is_cut_off_is_replaced_and_swept_when_it_joins_again(rig: Rig) -> None:
    rig.add_node("c")
    rules = {"nodes": ["b", "c"], "max_replicas_per_node": 1}
    rig.apply(add_sub(placement=rules))
    status = rig.settle(180)
    [row] = [each for each in rows(status) if each["node"] == "c"]
    folder = rig.folder / "nodes" / "c" / row["name"]
    described = read_process(folder)
    assert described is not None
    stopped = [rig.raylet_pid("c"), row["supervisor_pid"], described.pid]
    stopped += [each.pid for each in psutil.Process(described.pid).children(recursive=True)]
    wider = {"nodes": ["a", "b", "c"], "max_replicas_per_node": 1}
    rig.apply(add_sub(placement=wider))
    with Load(rig) as load:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        rig.wait(
            lambda found: (
                sorted(each["node"] for each in rows(found)) == ["a", "b"]
                and bool(found["is_settled"])
            ),
            120,
        )
    assert load.failures == []
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    assert is_running(described), "it may serve as long as nobody knows better"
    rig.forget_node("c")
    rig.add_node("c")
    rig.wait(lambda found: not is_running(described))


def test_a_lost_raylet_is_replaced(rig: Rig) -> None:
    rig.apply(add_sub())
    status = rig.settle(180)
    lost = next(row["node"] for row in rows(status) if row["node"] in rig.raylets)
    with Load(rig) as load:
        rig.remove_node(lost)
        status = rig.wait(
            lambda found: (
                all(row["node"] != lost for row in rows(found)) and bool(found["is_settled"])
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
