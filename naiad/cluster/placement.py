"""Where a replica goes: a demand and the nodes -> the node that is chosen, or why none can be.

Rule: pure. It reads what is given and starts nothing, so that a policy can be tested with invented
      nodes. Every node that is not chosen for a hard reason has that reason in words.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from naiad.cluster.resources import Resources
from naiad.cluster.spec import DeploymentSpec, PlacementSpec
from naiad.errors import NaiadError, invalid_arg

NAME_LABEL = "naiad.io/name"
ADDRESS_LABEL = "naiad.io/address"
"""The address that the operator gave a node. Ray may know the node by another one."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    """The label NAME_LABEL of the node, or its host name."""
    address: str
    """Where its replicas listen."""
    labels: dict[str, str] = {}
    total: Resources = Resources()
    free: Resources = Resources()
    accelerator_type: str = ""
    is_draining: bool = False
    is_joining: bool = False
    """What an earlier cluster left there is being ended."""
    unfit: dict[str, str] = {}
    """By deployment: why it could not start here the last time."""

    @property
    def url_host(self) -> str:
        """The address as a URL has it."""
        return f"[{self.address}]" if ":" in self.address else self.address


class Placed(msgspec.Struct, frozen=True):
    """A replica that has a node."""

    deployment: str
    node_id: str


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    deployment: str
    resources: Resources
    accelerator_type: str = ""
    placement: PlacementSpec = PlacementSpec()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str = ""
    """Empty if no node can be used."""
    reason: str = ""
    """Why this node; shown to the operator."""
    refusals: dict[str, str] = {}
    """By name of a node: why it cannot be used."""


class PlacementPolicy(Protocol):
    """A policy of the user's own chooses among the nodes that are possible: those that have the
    room, the labels and the rules that the deployment requires."""

    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        """Returns the id of one of `nodes`, or None to use none of them now."""


def demand_of(deployment: DeploymentSpec) -> Demand:
    return Demand(
        deployment=deployment.name,
        resources=deployment.resources.resources,
        accelerator_type=deployment.resources.accelerator_type,
        placement=deployment.placement,
    )


def place(
    demand: Demand,
    nodes: Sequence[Node],
    placed: Sequence[Placed],
    policy: PlacementPolicy | None = None,
) -> Choice:
    """`policy` is None for the strategy that the demand names."""
    refusals = {node.name: refusal(demand, node, placed) for node in nodes}
    possible = [node for node in nodes if not refusals[node.name]]
    refusals = {name: reason for name, reason in refusals.items() if reason}
    if not possible:
        return Choice(refusals=refusals)
    if policy is None:
        best = min(possible, key=lambda node: _rank(demand, node, placed))
        return Choice(
            node_id=best.id, reason=_explain(demand, best, placed, len(possible)), refusals=refusals
        )
    name = demand.placement.policy
    try:
        chosen = policy.choose(demand, possible, placed)
    except Exception as error:
        raise invalid_arg(f"policy {name} failed: {type(error).__name__}: {error}") from error
    if chosen is None:
        declined = {node.name: f"policy {name} does not want it" for node in possible}
        return Choice(refusals=refusals | declined)
    if all(node.id != chosen for node in possible):
        raise invalid_arg(
            f"policy {name} chose '{chosen}', which is none of the nodes it was given"
        )
    return Choice(node_id=chosen, reason=f"policy {name} chose it", refusals=refusals)


def refusal(demand: Demand, node: Node, placed: Sequence[Placed]) -> str:
    """Returns why the node cannot be used; empty if it can."""
    rules = demand.placement
    if rules.nodes and node.name not in rules.nodes and node.address not in rules.nodes:
        return f"is not one of the nodes that are named: {', '.join(rules.nodes)}"
    if node.is_draining:
        return "is draining"
    if node.is_joining:
        return "has just joined, wait a moment"
    for label, wanted in rules.require.items():
        value = node.labels.get(label)
        if value is None or value not in wanted.split("|"):
            found = "does not have the label" if value is None else f"has {value}"
            return f"requires {label}={wanted}, {found}"
    if demand.accelerator_type and node.accelerator_type != demand.accelerator_type:
        return f"needs a {demand.accelerator_type}, has {node.accelerator_type or 'no accelerator'}"
    here = [each.deployment for each in placed if each.node_id == node.id]
    limit = rules.max_replicas_per_node
    if limit and here.count(demand.deployment) >= limit:
        return (
            f"has {here.count(demand.deployment)} replicas of it, max_replicas_per_node is {limit}"
        )
    for other in rules.away_from:
        if other in here:
            return f"has a replica of '{other}', which it must be away from"
    if lack := demand.resources.missing_in(node.free):
        return lack
    return node.unfit.get(demand.deployment, "")


def _rank(demand: Demand, node: Node, placed: Sequence[Placed]) -> tuple[float, ...]:
    """The smallest is the best: labels first, then neighbours, then the strategy."""
    rules = demand.placement
    here = [each.deployment for each in placed if each.node_id == node.id]
    labels = sum(_has(node, *pair) for pair in rules.avoid.items()) - sum(
        _has(node, *pair) for pair in rules.prefer.items()
    )
    near = -sum(1 for other in rules.near if other in here)
    wants_no_gpu = demand.resources.gpus == 0
    keeps_gpus = 1.0 if wants_no_gpu and node.total.gpus > 0 else 0.0
    free = _free_share(node)
    if rules.strategy == "pack":
        return (labels, near, keeps_gpus, free, -here.count(demand.deployment))
    return (labels, near, here.count(demand.deployment), keeps_gpus, -free)


def _free_share(node: Node) -> float:
    """How much of the node is free, by the resource that is scarcest."""
    pairs = (
        (node.free.cpus, node.total.cpus),
        (node.free.gpus, node.total.gpus),
        (node.free.memory_bytes, node.total.memory_bytes),
    )
    return min((free / total for free, total in pairs if total), default=1.0)


def _has(node: Node, label: str, wanted: str) -> bool:
    return node.labels.get(label, "") in wanted.split("|") if label in node.labels else False


def _explain(demand: Demand, node: Node, placed: Sequence[Placed], num_possible: int) -> str:
    rules = demand.placement
    here = sum(
        1 for each in placed if each.node_id == node.id and each.deployment == demand.deployment
    )
    parts = [
        f"{label}={node.labels[label]} is preferred"
        for label, wanted in rules.prefer.items()
        if _has(node, label, wanted)
    ]
    if rules.strategy == "pack":
        parts.append(f"it is the fullest of {num_possible} that have room")
    else:
        parts.append(f"it has {here} replicas of it, the fewest of {num_possible} that have room")
    return ", ".join(parts)


def explain_refusals(deployment: str, choice: Choice) -> str:
    """What an operator reads when nothing fits: one line per node."""
    if not choice.refusals:
        return f"no node can take a replica of '{deployment}': the cluster has no nodes"
    lines = [f"  {name}: {reason}" for name, reason in sorted(choice.refusals.items())]
    return "\n".join([f"no node can take a replica of '{deployment}':", *lines])


def load_policy(name: str) -> PlacementPolicy:
    """Raises NaiadError."""
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise invalid_arg(f"policy {name} cannot be imported: {error}") from None
    except NaiadError:
        raise
    except Exception as error:
        raise invalid_arg(
            f"policy {name} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(made, "choose", None)):
        raise invalid_arg(f"policy {name} has no method choose(demand, nodes, placed)")
    policy: PlacementPolicy = made
    return policy
