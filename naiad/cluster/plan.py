"""The next steps towards what the cluster file says: deployments and replicas -> steps.

Rule: pure. A replica that serves is ended only when enough others serve in its place, so an update
      that does not become ready never takes anything away. Where there is no room for one more, one
      of several old replicas makes room, and the others serve meanwhile. Called again and again;
      each call gives the steps that are right now.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from naiad.cluster.placement import Choice, Node, Placed, PlacementPolicy, demand_of, place
from naiad.cluster.spec import ClusterSpec, DeploymentSpec
from naiad.errors import NaiadError


class ReplicaState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNREACHABLE = "unreachable"
    """It was ready, and its supervisor does not answer now. It may still serve."""
    DRAINING = "draining"
    FAILED = "failed"


class ReplicaRecord(msgspec.Struct, kw_only=True):
    name: str
    deployment: str
    revision: str
    node_id: str
    state: ReplicaState = ReplicaState.STARTING
    reason: str = ""
    placed_because: str = ""
    since_s: float = 0.0
    """When the state began, by the controller's clock, which no wall clock moves."""


class Start(msgspec.Struct, frozen=True):
    deployment: str
    choice: Choice


class Drain(msgspec.Struct, frozen=True):
    """The router sends it nothing new; when its requests are done it is stopped."""

    replica: str
    reason: str


class Plan(msgspec.Struct, frozen=True):
    starts: tuple[Start, ...]
    drains: tuple[Drain, ...]
    problems: dict[str, str]
    """By deployment: why it has fewer replicas than it should."""


def make_plan(
    spec: ClusterSpec,
    wanted: Mapping[str, int],
    replicas: Sequence[ReplicaRecord],
    nodes: Sequence[Node],
    policies: Mapping[str, PlacementPolicy],
) -> Plan:
    """`wanted` has the number of replicas of each deployment. `policies` has those that the user
    wrote, by name."""
    starts: list[Start] = []
    drains: list[Drain] = []
    problems: dict[str, str] = {}
    free = {node.id: node for node in nodes}
    placed = [
        Placed(each.deployment, each.node_id)
        for each in replicas
        if each.state is not ReplicaState.FAILED
    ]
    for deployment in spec.deployment:
        count = wanted.get(deployment.name, 0)
        own = [each for each in replicas if each.deployment == deployment.name]
        drains += _surplus(deployment, count, own, free)
        for _ in range(_num_missing(deployment, count, own, free)):
            try:
                policy = policies.get(deployment.placement.policy)
                choice = place(demand_of(deployment), list(free.values()), placed, policy)
            except NaiadError as error:
                problems[deployment.name] = error.message
                break
            if not choice.node_id:
                leaving = _makes_room(deployment, count, own, free, placed, policy)
                if leaving is not None:
                    drains.append(Drain(leaving.name, "it makes room for the new revision"))
                    break
                problems[deployment.name] = (
                    "; ".join(
                        f"{name}: {reason}" for name, reason in sorted(choice.refusals.items())
                    )
                    or "the cluster has no nodes"
                )
                break
            starts.append(Start(deployment.name, choice))
            placed.append(Placed(deployment.name, choice.node_id))
            node = free[choice.node_id]
            left = node.free - deployment.resources.resources
            free[node.id] = msgspec.structs.replace(node, free=left)
    known = {deployment.name for deployment in spec.deployment}
    drains += [
        Drain(each.name, "the cluster file does not name its deployment")
        for each in replicas
        if each.deployment not in known and each.state is not ReplicaState.DRAINING
    ]
    return Plan(tuple(starts), tuple(drains), problems)


def _makes_room(
    deployment: DeploymentSpec,
    count: int,
    own: Sequence[ReplicaRecord],
    nodes: Mapping[str, Node],
    placed: Sequence[Placed],
    policy: PlacementPolicy | None,
) -> ReplicaRecord | None:
    """Returns the replica of an earlier revision without which a new one has a place. Returns None
    if the deployment would serve with fewer than `count` - 1 replicas or not at all, or if one of
    its replicas starts or drains already."""
    serving = [each for each in own if each.state is ReplicaState.READY and each.node_id in nodes]
    is_moving = any(each.state in (ReplicaState.STARTING, ReplicaState.DRAINING) for each in own)
    if is_moving or len(serving) < max(count, 2):
        return None
    for replica in serving:
        if _is_current(replica, deployment):
            continue
        node = nodes[replica.node_id]
        without = list(placed)
        without.remove(Placed(deployment.name, node.id))
        roomier = msgspec.structs.replace(node, free=node.free + deployment.resources.resources)
        try:
            choice = place(demand_of(deployment), [roomier], without, policy)
        except NaiadError:
            return None
        if choice.node_id:
            return replica
    return None


def _num_missing(
    deployment: DeploymentSpec,
    count: int,
    own: Sequence[ReplicaRecord],
    nodes: Mapping[str, Node],
) -> int:
    """How many to start now. During an update there is one more than `count` at a time; what a lost
    node had is started at once."""
    staying = [each for each in own if _is_current(each, deployment) and _may_stay(each, nodes)]
    missing = count - len(staying)
    if missing <= 0:
        return 0
    running = sum(
        each.state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.UNREACHABLE)
        for each in own
        if each.node_id in nodes
    )
    is_update = any(
        each.state in (ReplicaState.READY, ReplicaState.UNREACHABLE)
        and each not in staying
        and each.node_id in nodes
        for each in own
    )
    return min(missing, max(0, count + 1 - running)) if is_update else missing


def _surplus(
    deployment: DeploymentSpec,
    count: int,
    own: Sequence[ReplicaRecord],
    nodes: Mapping[str, Node],
) -> list[Drain]:
    ready = [
        each
        for each in own
        if each.state is ReplicaState.READY
        and _is_current(each, deployment)
        and _may_stay(each, nodes)
    ]
    leaving = [
        each
        for each in own
        if each.state in (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.UNREACHABLE)
        and each not in ready
        and not (_is_current(each, deployment) and _may_stay(each, nodes))
    ]
    drains = []
    serving_old = [each for each in leaving if each.state is not ReplicaState.STARTING]
    may_leave = max(0, len(ready) + len(serving_old) - count)
    for each in leaving:
        reason = (
            "its node drains" if _is_current(each, deployment) else "it has an earlier revision"
        )
        if each.state is ReplicaState.STARTING:
            drains.append(Drain(each.name, reason))
        elif may_leave > 0:
            may_leave -= 1
            drains.append(Drain(each.name, reason))
    extra = max(0, len(ready) - count) if not serving_old else 0
    starting = [each for each in own if each.state is ReplicaState.STARTING and each not in leaving]
    surplus_starts = max(0, len(ready) + len(starting) - max(count, len(ready)))
    drains += [Drain(each.name, "fewer are wanted") for each in starting[-surplus_starts:]
               if surplus_starts]  # fmt: skip
    youngest = sorted(ready, key=lambda each: each.since_s, reverse=True)
    drains += [Drain(each.name, "fewer are wanted") for each in youngest[:extra]]
    return drains


def _is_current(replica: ReplicaRecord, deployment: DeploymentSpec) -> bool:
    return replica.revision == deployment.revision


def _may_stay(replica: ReplicaRecord, nodes: Mapping[str, Node]) -> bool:
    """A replica on a node that is away is not counted on, but it is not ended either: the node
    may serve on, cut off from Ray."""
    if replica.state in (ReplicaState.FAILED, ReplicaState.DRAINING):
        return False
    node = nodes.get(replica.node_id)
    return node is not None and not node.is_draining
