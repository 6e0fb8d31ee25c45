"""The controller with invented machines: what it starts, drains and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from naiad.cluster.controller import Controller
from naiad.cluster.machines import ServerGone
from naiad.cluster.router_load import RouterLoad
from naiad.cluster.routers import ROUTER
from naiad.cluster.spec import ClusterSpec, parse_spec
from naiad.errors import NaiadError
from tests.unit.cluster.fake_machines import FakeMachines, node, report


class Cluster:
    """A controller, its machines, its clock and the load that the router reports."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.machines = FakeMachines(*(node(name) for name in names))
        self.now_s = 1000.0
        self.load = RouterLoad(is_known=True)
        self.controller = self.make_controller()

    def make_controller(self) -> Controller:
        return Controller(
            self.machines,
            self.folder,
            "id-head",
            lambda address, port: self.load,
            lambda: self.now_s,
        )

    def apply(self, fields: str, **more: str) -> None:
        rows = {"d": fields, **more}
        text = "".join(
            f"[[deployment]]\nname = '{name}'\nrepository = '/models'\n{row}\n"
            for name, row in rows.items()
        )
        self.controller.apply(parse_spec(text.encode(), ".toml", "cluster.toml"))

    def tick(self, count: int = 1, seconds: float = 1.0, *, is_ready: bool = True) -> None:
        for _ in range(count):
            self.now_s += seconds
            if is_ready:
                self.machines.make_ready()
            self.controller.tick()

    @property
    def replicas(self) -> dict[str, str]:
        """By name: the node."""
        return {
            name: node_id.removeprefix("id-")
            for name, (_, node_id, _) in self.machines.servers.items()
            if not name.startswith(ROUTER)
        }

    def row(self, name: str = "d") -> dict[str, Any]:
        rows = self.controller.status()["deployments"]
        return next(row for row in rows if row["name"] == name)

    @property
    def routed(self) -> list[str]:
        config = msgspec.json.decode(self.machines.configs[ROUTER])
        return sorted(row["name"] for row in config["replica"])


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "state", "head", "a", "b")


def test_replicas_start_on_different_nodes_and_the_router_knows_them(cluster: Cluster) -> None:
    cluster.apply("replicas = 3")
    cluster.tick(3)
    assert sorted(cluster.replicas.values()) == ["a", "b", "head"]
    assert cluster.routed == sorted(cluster.replicas)
    assert cluster.controller.is_settled
    assert cluster.row()["ready"] == 3


def test_models_become_arguments(cluster: Cluster) -> None:
    cluster.apply("models = ['x', 'y']\narguments = ['--log-verbose=1']")
    cluster.tick(2)
    [name] = cluster.replicas
    arguments = cluster.machines.servers[name][0].arguments
    assert "--load-model=x" in arguments
    assert "--load-model=y" in arguments
    assert "--model-repository=/models" in arguments
    assert arguments[-1] == "--log-verbose=1"


def test_fewer_replicas_are_drained_before_they_are_stopped(cluster: Cluster) -> None:
    cluster.apply("replicas = 3")
    cluster.tick(3)
    cluster.apply("replicas = 1")
    cluster.load = RouterLoad(dict.fromkeys(cluster.replicas, 1.0), {}, is_known=True)
    cluster.tick(5)
    assert len(cluster.replicas) == 3, "requests are in flight"
    assert len(cluster.routed) == 1, "the router sends no new ones"
    cluster.load = RouterLoad(is_known=True)
    cluster.tick()
    assert len(cluster.replicas) == 1
    assert cluster.controller.is_settled


def test_a_replica_that_never_finishes_is_stopped_at_last(cluster: Cluster) -> None:
    cluster.apply("replicas = 2\ndrain_timeout = '30s'")
    cluster.tick(3)
    cluster.apply("replicas = 1\ndrain_timeout = '30s'")
    cluster.load = RouterLoad(dict.fromkeys(cluster.replicas, 1.0), {}, is_known=True)
    cluster.tick(40)
    assert len(cluster.replicas) == 1


def test_an_update_replaces_one_replica_after_the_other(cluster: Cluster) -> None:
    cluster.apply("replicas = 3")
    cluster.tick(3)
    before = set(cluster.replicas)
    cluster.apply("replicas = 3\narguments = ['--log-verbose=1']")
    fewest = 3
    for _ in range(40):
        cluster.tick()
        fewest = min(fewest, len(cluster.routed))
        assert len(cluster.replicas) <= 5
    assert fewest == 3, "three replicas served all the time"
    assert not before & set(cluster.replicas)
    assert cluster.controller.is_settled


@pytest.mark.parametrize(
    "fields",
    [
        "replicas = 3\nplacement = { max_replicas_per_node = 1 }",
        "replicas = 3\nresources = { cpus = 8 }",
    ],
)
def test_an_update_without_room_for_one_more_replaces_one_after_the_other(
    cluster: Cluster, fields: str
) -> None:
    cluster.apply(fields)
    cluster.tick(3)
    before = set(cluster.replicas)
    assert len(before) == 3
    cluster.apply(f"{fields}\narguments = ['--log-verbose=1']")
    fewest = 3
    for _ in range(60):
        cluster.tick()
        fewest = min(fewest, len(cluster.routed))
        assert len(set(cluster.replicas.values())) == len(cluster.replicas)
    assert fewest == 2, "two served all the time"
    assert not before & set(cluster.replicas)
    assert cluster.controller.is_settled


def test_the_only_replica_makes_no_room(cluster: Cluster) -> None:
    rules = "replicas = 1\nplacement = { nodes = ['a'], max_replicas_per_node = 1 }"
    cluster.apply(rules)
    cluster.tick(3)
    before = sorted(cluster.replicas)
    cluster.apply(f"{rules}\narguments = ['--log-verbose=1']")
    cluster.tick(20)
    assert sorted(cluster.routed) == before
    assert "a: has 1 replicas of it" in cluster.row()["problem"]


def test_an_update_that_failed_on_a_node_makes_no_room_there(cluster: Cluster) -> None:
    fields = "replicas = 3\nstart_timeout = '5s'\nresources = { cpus = 8 }"
    cluster.apply(fields)
    cluster.tick(3)
    cluster.apply(f"{fields}\narguments = ['--log-verbose=9']")
    for _ in range(100):
        cluster.now_s += 1
        for name, (spec, _, _) in cluster.machines.servers.items():
            if "--log-verbose=9" not in spec.arguments:
                cluster.machines.states[name] = report(True)
        cluster.controller.tick()
        assert len(cluster.routed) >= 2, "one at most makes room for what does not start"
    assert "starts failed" in cluster.row()["problem"]


def test_an_update_that_does_not_start_takes_nothing_away(cluster: Cluster) -> None:
    cluster.apply("replicas = 2\nstart_timeout = '20s'")
    cluster.tick(3)
    before = sorted(cluster.replicas)
    cluster.apply("replicas = 2\nstart_timeout = '20s'\narguments = ['--log-verbose=9']")
    for _ in range(120):
        cluster.tick(is_ready=False)
        assert set(before) <= set(cluster.routed)
    assert "starts failed, the last: it was not ready within 20s" in cluster.row()["problem"]
    assert not cluster.controller.is_settled
    cluster.controller.rollback()
    cluster.tick(5)
    assert sorted(cluster.replicas) == before
    assert cluster.controller.is_settled


def test_a_lost_node_is_replaced(cluster: Cluster) -> None:
    cluster.apply("replicas = 3")
    cluster.tick(3)
    cluster.machines.lose("a")
    cluster.tick(6)
    rows = cluster.row()["replicas"]
    assert [row["node"] for row in rows if row["state"] == "ready"] != []
    assert cluster.row()["ready"] == 3
    assert all(row["node"] != "a" for row in rows)
    assert cluster.controller.is_settled


def test_a_silent_supervisor_does_not_end_what_serves(cluster: Cluster) -> None:
    cluster.apply("replicas = 2")
    cluster.tick(3)
    name = sorted(cluster.replicas)[0]
    cluster.machines.states[name] = ServerGone("its supervisor is silent for 6 s")
    cluster.tick(5, is_ready=False)
    assert name in cluster.routed
    assert name in cluster.replicas
    row = next(row for row in cluster.row()["replicas"] if row["name"] == name)
    assert (row["state"], row["reason"]) == ("unreachable", "its supervisor is silent for 6 s")
    cluster.tick(2)
    assert cluster.controller.is_settled


def test_a_node_that_cannot_run_a_replica_is_left_out_with_the_reason(cluster: Cluster) -> None:
    cluster.machines.refusals = {"id-a": "this node has no folder '/models'"}
    cluster.apply("replicas = 1\nplacement = { nodes = ['a'] }")
    cluster.tick(8)
    assert "a: this node has no folder '/models'" in cluster.row()["problem"]
    cluster.apply("replicas = 2\nplacement = { max_replicas_per_node = 1 }")
    cluster.tick(12)
    assert sorted(cluster.replicas.values()) == ["b", "head"]


def test_a_demand_that_cannot_be_met_says_why_by_node(cluster: Cluster) -> None:
    cluster.apply("replicas = 4\nresources = { cpus = 8 }")
    cluster.tick(3)
    assert cluster.row()["ready"] == 3
    assert "a: needs 8 CPUs, has 0 free" in cluster.row()["problem"]
    assert not cluster.controller.is_settled


def test_a_drained_node_loses_its_replicas_only_when_others_serve(cluster: Cluster) -> None:
    cluster.apply("replicas = 2")
    cluster.tick(3)
    busy = sorted(cluster.replicas.values())[0]
    cluster.controller.drain(busy)
    for _ in range(20):
        cluster.tick()
        assert len(cluster.routed) >= 2
    assert busy not in cluster.replicas.values()
    cluster.controller.drain(busy, is_draining=False)
    with pytest.raises(NaiadError, match="there is no node 'x'; the nodes are "):
        cluster.controller.drain("x")


def test_a_deployment_that_sleeps_wakes_by_a_request(cluster: Cluster) -> None:
    cluster.apply(
        "models = ['m']\n"
        "autoscaling = { min_replicas = 0, max_replicas = 2, scale_down_after = '30s' }"
    )
    cluster.tick(5)
    assert cluster.replicas == {}
    assert cluster.controller.is_settled
    config = msgspec.json.decode(cluster.machines.configs[ROUTER])
    assert config["asleep"] == ["m"]
    cluster.load = RouterLoad({}, {"m": 1.0}, is_known=True)
    cluster.tick(2)
    assert len(cluster.replicas) == 1
    cluster.load = RouterLoad(is_known=True)
    cluster.tick(50)
    assert cluster.replicas == {}


def test_a_controller_that_was_killed_goes_on_with_what_runs(cluster: Cluster) -> None:
    cluster.apply("replicas = 2")
    cluster.tick(3)
    before = dict(cluster.replicas)
    cluster.controller = cluster.make_controller()
    cluster.tick(5)
    assert cluster.replicas == before
    assert cluster.machines.stopped == []
    assert cluster.controller.is_settled


def test_a_controller_that_was_killed_adopts_before_it_judges(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the supervisors have reported, the routers keep what they knew."""
    cluster.apply("replicas = 2")
    cluster.tick(3)
    before = cluster.machines.configs[ROUTER]
    servers = sorted(cluster.replicas)
    monkeypatch.setattr(cluster.machines, "reports", lambda: dict.fromkeys(servers))
    cluster.controller = cluster.make_controller()
    for _ in range(5):
        cluster.tick(is_ready=False)
        assert cluster.machines.configs[ROUTER] == before
        assert cluster.row()["ready"] == 2
    cluster.tick(seconds=30, count=2, is_ready=False)
    assert {row["state"] for row in cluster.row()["replicas"]} == {"unreachable"}
    assert cluster.routed == servers, "the router sees for itself"
    monkeypatch.undo()
    cluster.tick(2)
    assert cluster.controller.is_settled
    assert cluster.machines.stopped == []


def test_nodes_are_found_again_by_name_after_ray_was_started_anew(cluster: Cluster) -> None:
    cluster.apply("replicas = 2\nplacement = { nodes = ['a', 'b'] }")
    cluster.tick(3)
    before = dict(cluster.replicas)
    cluster.machines.servers.clear()
    cluster.machines.states.clear()
    cluster.machines.all_nodes = [
        node("head"),
        node("a", id="new-a"),
        node("b", id="new-b"),
    ]
    cluster.controller = cluster.make_controller()
    cluster.tick(5)
    after = {name: place.removeprefix("new-") for name, place in cluster.replicas.items()}
    assert after == before
    keep = dict(cluster.machines.swept)
    assert keep["new-a"] | keep["new-b"] == set(before)


def test_a_broken_state_file_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "state.json").write_text("{")
    with pytest.raises(NaiadError, match=r"state\.json', cannot be read"):
        Cluster(folder, "head")
    assert (folder / "state.json").read_text() == "{"


def test_a_policy_that_cannot_be_imported_changes_nothing(cluster: Cluster) -> None:
    cluster.apply("replicas = 1")
    cluster.tick(2)
    with pytest.raises(NaiadError, match="cannot be imported"):
        cluster.apply("replicas = 2\nplacement = { policy = 'no_such:Policy' }")
    cluster.tick(3)
    assert len(cluster.replicas) == 1


def test_models_that_no_node_has_change_nothing(cluster: Cluster) -> None:
    cluster.apply("models = ['x']\nreplicas = 2")
    cluster.tick(3)
    before = dict(cluster.replicas)
    cluster.machines.problems = ["'/models' has no model 'y'", "this node has no folder '/models'"]
    with pytest.raises(NaiadError, match=r"deployment 'd': '/models' has no model 'y', on every"):
        cluster.apply("models = ['y']\nreplicas = 2")
    cluster.tick(5)
    assert cluster.replicas == before
    assert cluster.controller.is_settled
    cluster.machines.looked.clear()
    cluster.apply("models = ['x']\nreplicas = 3")
    assert cluster.machines.looked == [], "the same revision is not judged again"
    cluster.machines.problems = ["this node has no folder '/models'", ""]
    cluster.apply("models = ['y']\nreplicas = 2")
    assert cluster.machines.looked == [("/models", ("y",))], "one node that can is enough"


def test_the_routers_ports_do_not_change_under_traffic(cluster: Cluster) -> None:
    cluster.apply("replicas = 1")
    changed = parse_spec(
        b"[router]\nhttp_port = 1\n[[deployment]]\nname = 'd'\nrepository = '/m'", ".toml", "f"
    )
    with pytest.raises(NaiadError, match="the router's fields cannot change while it serves"):
        cluster.controller.apply(changed)


def test_a_deployment_that_the_file_does_not_name_ends(cluster: Cluster) -> None:
    cluster.apply("replicas = 1", e="replicas = 1")
    cluster.tick(3)
    cluster.apply("replicas = 1")
    cluster.tick(5)
    assert [name for name in cluster.replicas if name.startswith("e")] == []
    assert cluster.controller.is_settled


def test_without_a_file_nothing_runs(cluster: Cluster) -> None:
    cluster.tick(3)
    assert cluster.machines.servers == {}
    with pytest.raises(NaiadError, match="no earlier cluster file"):
        cluster.controller.rollback()
    assert cluster.controller.status()["deployments"] == []
    assert ClusterSpec() == ClusterSpec()


def test_lines_are_those_of_all_replicas_of_a_deployment(cluster: Cluster) -> None:
    cluster.apply("replicas = 2")
    cluster.tick(2)
    text = cluster.controller.last_lines("d", 7)
    assert sorted(text.splitlines()) == [
        f"[{node}/{name}] the last 7 lines of {name}"
        for name, node in sorted(cluster.replicas.items(), key=lambda row: row[1])
    ]
    with pytest.raises(NaiadError, match="no replica, router or deployment 'x'"):
        cluster.controller.last_lines("x", 1)


def test_reports_of_first_tokens_scale_up(cluster: Cluster) -> None:
    cluster.apply(
        "autoscaling = { max_replicas = 3, target_first_token_ms = 100, target_queue = 100, "
        "scale_up_after = '5s' }"
    )
    cluster.tick(2)
    for step in range(10):
        cluster.load = RouterLoad(dict.fromkeys(cluster.replicas, 2.0), {}, is_known=True)
        cluster.now_s += 1
        for name in cluster.replicas:
            count = 10.0 * (step + 1)
            cluster.machines.states[name] = report(
                True, **{"0.1": 0.0, "0.5": count, "+Inf": count}
            )
        cluster.controller.tick()
    assert len(cluster.replicas) >= 2
