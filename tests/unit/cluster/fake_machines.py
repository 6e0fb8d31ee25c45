"""Machines without Ray: nodes and servers that a test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from naiad.cluster.machines import ServerGone, ServerRefused
from naiad.cluster.placement import Node
from naiad.cluster.resources import Resources
from naiad.cluster.supervisor import ServerReport, ServerSpec


def node(name: str, **fields: Any) -> Node:
    size = Resources(cpus=8, gpus=0, memory_bytes=2**34)
    made = Node(id=f"id-{name}", name=name, address=f"10.0.0.{len(name)}", total=size, free=size)
    return msgspec.structs.replace(made, **fields)


class FakeMachines:
    def __init__(self, *nodes: Node) -> None:
        self.all_nodes = list(nodes)
        self.servers: dict[str, tuple[ServerSpec, str, Resources]] = {}
        self.states: dict[str, ServerReport | ServerGone | ServerRefused | None] = {}
        self.refusals: dict[str, str] = {}
        """By id of a node."""
        self.configs: dict[str, bytes] = {}
        self.files: dict[tuple[str, str], bytes] = {}
        self.tokenizers: dict[str, dict[str, str]] = {}
        """By id of a node: what its routers say about tokenizers."""
        self.without_zmq: set[str] = set()
        """Ids of nodes."""
        self.stopped: list[str] = []
        self.problems = [""]
        """What the nodes say of a repository."""
        self.looked: list[tuple[str, tuple[str, ...]]] = []
        self.swept: list[tuple[str, frozenset[str]]] = []

    def nodes(self) -> list[Node]:
        rows = []
        for each in self.all_nodes:
            used = Resources()
            for _, node_id, resources in self.servers.values():
                if node_id == each.id:
                    used = used + resources
            rows.append(msgspec.structs.replace(each, free=each.total - used))
        return rows

    def start(self, spec: ServerSpec, node_id: str, resources: Resources) -> None:
        self.servers[spec.name] = (spec, node_id, resources)
        reason = self.refusals.get(node_id)
        self.states[spec.name] = ServerRefused(reason) if reason else report(False)

    def reports(self) -> Mapping[str, ServerReport | ServerGone | ServerRefused | None]:
        return dict(self.states)

    def write(self, server: str, file: str, content: bytes) -> None:
        if file == "config.json":
            self.configs[server] = content
        self.files[server, file] = content

    def stop(self, server: str, grace_s: float) -> None:
        self.servers.pop(server, None)
        self.states.pop(server, None)
        self.stopped.append(server)

    def last_lines(self, server: str, count: int) -> str:
        return f"the last {count} lines of {server}"

    def look(self, repository: str, models: Sequence[str]) -> list[str]:
        self.looked.append((repository, tuple(models)))
        return list(self.problems)

    def sweep(self, node_id: str, keep: frozenset[str]) -> None:
        self.swept.append((node_id, keep))

    def is_swept(self, node_id: str) -> bool:
        return any(swept == node_id for swept, _ in self.swept)

    def make_ready(self) -> None:
        for name in self.servers:
            if not isinstance(self.states[name], ServerRefused):
                made = report(True)
                spec, node_id, _ = self.servers[name]
                if spec.publishes_kv_events:
                    made.ports.update(kv_events=9003, kv_replay=9004)
                if spec.tokenizers_file:
                    made = msgspec.structs.replace(
                        made,
                        tokenizers=self.tokenizers.get(node_id),
                        has_zmq=node_id not in self.without_zmq,
                    )
                self.states[name] = made

    def lose(self, name: str) -> None:
        """A node goes away with what is known of its servers."""
        gone = f"id-{name}"
        self.all_nodes = [each for each in self.all_nodes if each.id != gone]
        for server, (_, node_id, _) in self.servers.items():
            if node_id == gone:
                self.states[server] = ServerGone("the node died")


def report(is_ready: bool, **buckets: float) -> ServerReport:
    return ServerReport(
        is_ready=is_ready,
        is_running=True,
        reason="" if is_ready else "it starts",
        ports={"http": 9000, "grpc": 9001, "metrics": 9002},
        pid=1,
        supervisor_pid=2,
        num_restarts=0,
        was_adopted=False,
        first_token_buckets=buckets,
    )
