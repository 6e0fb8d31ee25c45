"""The view of machines in the admin API."""

from __future__ import annotations

from naiad.router.admin import node_rows
from naiad.router.config import NodeSpec, ReplicaSpec, RouterConfig
from naiad.router.fleet import Fleet
from naiad.router.replica import ReplicaState


def test_replicas_are_shown_on_their_nodes() -> None:
    fleet = Fleet(RouterConfig())
    for number, node in enumerate(("a", "a", "b")):
        spec = ReplicaSpec(f"http://10.0.0.{number}:80", name=f"d-{number}", node=node, note="why")
        replica = fleet.add(spec, "file")
        fleet.set_models(replica, {"m": frozenset("1")}, {})
        fleet.set_state(replica, ReplicaState.READY, "")
        fleet.on_sent(replica)
    fleet.drain("d-1")
    nodes = (
        NodeSpec("a", "10.0.0.1", "ready", labels={"zone": "x"}, cpus=8, free_cpus=6),
        NodeSpec("idle", "10.0.0.9"),
    )
    first, second, third = node_rows(nodes, list(fleet))
    assert (first["name"], first["labels"], first["free_cpus"]) == ("a", {"zone": "x"}, 6)
    assert (first["ready"], first["in_flight"]) == (1, 2)
    assert first["replicas"][1] == {
        "name": "d-1",
        "state": "draining",
        "in_flight": 1,
        "models": ["m"],
        "note": "why",
    }
    assert (second["name"], second["address"], second["ready"]) == ("b", "", 1)
    assert (third["name"], third["replicas"]) == ("idle", [])


def test_without_a_cluster_a_node_is_a_host() -> None:
    fleet = Fleet(RouterConfig())
    fleet.add(ReplicaSpec("http://10.0.0.1:80"), "flag")
    fleet.add(ReplicaSpec("http://10.0.0.1:81"), "flag")
    [row] = node_rows((), list(fleet))
    assert row["name"] == "10.0.0.1"
    assert len(row["replicas"]) == 2
