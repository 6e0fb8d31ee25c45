from __future__ import annotations

from collections.abc import Sequence

import pytest

from naiad.cluster.placement import (
    Choice,
    Demand,
    Node,
    Placed,
    explain_refusals,
    load_policy,
    place,
)
from naiad.cluster.resources import Resources
from naiad.cluster.spec import PlacementSpec
from naiad.errors import NaiadError
from tests.unit.cluster.fake_machines import node


def demand(placement: PlacementSpec | None = None, **resources: float) -> Demand:
    return Demand(
        deployment="d",
        resources=Resources(cpus=resources.get("cpus", 1.0), gpus=resources.get("gpus", 0.0)),
        placement=placement or PlacementSpec(),
    )


def gpus(count: float, free: float) -> dict[str, Resources]:
    return {"total": Resources(cpus=8, gpus=count), "free": Resources(cpus=8, gpus=free)}


def chosen(choice: Choice) -> str:
    return choice.node_id.removeprefix("id-")


@pytest.mark.parametrize(("address", "host"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")])
def test_an_ipv6_address_has_brackets_in_urls(address: str, host: str) -> None:
    assert Node(id="id-a", name="a", address=address).url_host == host


def test_spread_takes_the_node_with_the_fewest_replicas() -> None:
    nodes = [node("a"), node("b")]
    assert chosen(place(demand(), nodes, [Placed("d", "id-a")])) == "b"
    choice = place(demand(), nodes, [Placed("d", "id-a"), Placed("d", "id-b"), Placed("d", "id-b")])
    assert chosen(choice) == "a"
    assert "the fewest of 2" in choice.reason


def test_pack_takes_the_fullest_node_that_has_room() -> None:
    nodes = [
        node("a"),
        node("b", free=Resources(cpus=2, memory_bytes=2**33)),
        node("c", free=Resources(cpus=0.5)),
    ]
    choice = place(demand(PlacementSpec(strategy="pack")), nodes, [])
    assert chosen(choice) == "b"
    assert choice.refusals == {"c": "needs 1 CPUs, has 0.5 free"}


def test_a_model_without_gpu_leaves_gpu_nodes_free() -> None:
    nodes = [node("gpu", **gpus(8, 8)), node("cpu")]
    assert chosen(place(demand(), nodes, [])) == "cpu"


def test_shares_of_a_gpu_add_up() -> None:
    nodes = [node("a", **gpus(1, 0.5))]
    assert chosen(place(demand(gpus=0.5), nodes, [])) == "a"
    assert place(demand(gpus=0.6), nodes, []).refusals == {"a": "needs 0.6 GPUs, has 0.5 free"}


def test_labels_that_are_required_preferred_and_avoided() -> None:
    nodes = [
        node("a", labels={"zone": "a", "disk": "slow"}),
        node("b", labels={"zone": "b"}),
        node("c", labels={"zone": "c"}),
    ]
    rules = PlacementSpec(require={"zone": "a|b"}, avoid={"disk": "slow"})
    choice = place(demand(rules), nodes, [])
    assert chosen(choice) == "b"
    assert choice.refusals == {"c": "requires zone=a|b, has c"}
    only = place(demand(rules), nodes[:1], [])
    assert chosen(only) == "a", "what is avoided is used if there is nothing else"
    preferred = place(demand(PlacementSpec(prefer={"zone": "c"})), nodes, [])
    assert chosen(preferred) == "c"
    assert "zone=c is preferred" in preferred.reason


def test_replicas_stay_apart_where_the_rules_say_so() -> None:
    nodes = [node("a"), node("b")]
    placed = [Placed("d", "id-a"), Placed("other", "id-b")]
    alone = PlacementSpec(max_replicas_per_node=1, away_from=("other",))
    choice = place(demand(alone), nodes, placed)
    assert choice.node_id == ""
    assert choice.refusals == {
        "a": "has 1 replicas of it, max_replicas_per_node is 1",
        "b": "has a replica of 'other', which it must be away from",
    }
    near = place(demand(PlacementSpec(near=("other",))), nodes, placed)
    assert chosen(near) == "b"


def test_nodes_can_be_named_and_draining_ones_are_left_out() -> None:
    nodes = [node("a"), node("b"), node("c", is_draining=True)]
    assert chosen(place(demand(PlacementSpec(nodes=("b",))), nodes, [])) == "b"
    refusals = place(demand(PlacementSpec(nodes=("c",))), nodes, []).refusals
    assert refusals["c"] == "is draining"
    assert refusals["a"] == "is not one of the nodes that are named: c"


def test_what_cannot_be_met_is_explained_node_by_node() -> None:
    nodes = [node("a"), node("b", unfit={"d": "this node has no folder '/models'"})]
    choice = place(demand(cpus=1), [nodes[1]], [])
    text = explain_refusals("d", choice)
    assert text.splitlines() == [
        "no node can take a replica of 'd':",
        "  b: this node has no folder '/models'",
    ]
    assert "the cluster has no nodes" in explain_refusals("d", place(demand(), [], []))


def test_an_accelerator_type_is_required() -> None:
    nodes = [node("a", accelerator_type="A10G", **gpus(1, 1)), node("b")]
    needs = Demand(deployment="d", resources=Resources(gpus=1), accelerator_type="H200")
    assert place(needs, nodes, []).refusals == {
        "a": "needs a H200, has A10G",
        "b": "needs a H200, has no accelerator",
    }


class LastNode:
    """A policy as a user would write it."""

    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        return max(node.id for node in nodes)


class Refuses:
    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        return None


class Confused:
    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        return "elsewhere"


class Broken:
    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        raise KeyError("rack")


def test_a_policy_of_ones_own_chooses_among_what_is_possible() -> None:
    name = f"{__name__}:LastNode"
    rules = PlacementSpec(policy=name)
    nodes = [node("a"), node("b"), node("c", is_draining=True)]
    choice = place(demand(rules), nodes, [], load_policy(name))
    assert chosen(choice) == "b"
    assert choice.reason == f"policy {name} chose it"


def test_a_policy_may_refuse() -> None:
    choice = place(demand(PlacementSpec(policy="m:Refuses")), [node("a")], [], Refuses())
    assert choice.refusals == {"a": "policy m:Refuses does not want it"}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Confused(), "chose 'elsewhere', which is none of the nodes it was given"),
        (Broken(), "failed: KeyError: 'rack'"),
    ],
)
def test_a_broken_policy_is_named(policy: Confused | Broken, message: str) -> None:
    with pytest.raises(NaiadError, match=message):
        place(demand(PlacementSpec(policy="m:C")), [node("a")], [], policy)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:A", "cannot be imported"),
        (f"{__name__}:Missing", "cannot be imported"),
        (f"{__name__}:Sequence", "cannot be made"),
        ("collections:OrderedDict", "has no method choose"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_at_once(name: str, message: str) -> None:
    with pytest.raises(NaiadError, match=message):
        load_policy(name)
