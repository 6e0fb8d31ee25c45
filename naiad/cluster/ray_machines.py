"""The machines of a Ray cluster: Ray's nodes, and servers as detached actors on them.

Invariant: an actor is bound to its node. Ray starts it again there, where its server runs; a server
           moves only when the controller decides so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from naiad.cluster.actors import ServerActor, sweep_folder
from naiad.cluster.machines import ServerGone, ServerRefused
from naiad.cluster.placement import ADDRESS_LABEL, NAME_LABEL, Node
from naiad.cluster.ray_node import labelled_address
from naiad.cluster.resources import Resources
from naiad.cluster.supervisor import ServerReport, ServerSpec, repository_problem

NAMESPACE = "naiad"
SILENCE_S = 5.0
"""A supervisor that does not answer for so long is taken to be away."""
LOOK_S = 10.0
_ACCELERATOR = "accelerator_type:"


class _Server:
    def __init__(self, handle: Any, node_id: str, resources: Resources) -> None:
        self.handle = handle
        self.node_id = node_id
        self.resources = resources
        self.asked: Any = None
        self.asked_at_s = 0.0
        self.latest: ServerReport | ServerGone | ServerRefused | None = None


class RayMachines:
    def __init__(self, base: str) -> None:
        """`base` is a folder on every node; each node uses one in it of its own name."""
        self._base = Path(base)
        self._servers: dict[str, _Server] = {}
        self._stopping: dict[str, tuple[Any, Any]] = {}
        self._names: dict[str, str] = {}
        self._sweeps: dict[str, Any] = {}
        """By id of a node: the task, or None when it is done."""

    def nodes(self) -> list[Node]:
        free = ray._private.state.available_resources_per_node()
        reserved: dict[str, Resources] = {}
        for server in self._servers.values():
            reserved[server.node_id] = reserved.get(server.node_id, Resources()) + server.resources
        nodes = []
        for row in ray.nodes():
            if not row["Alive"]:
                continue
            total, node_id = row["Resources"], row["NodeID"]
            left = free.get(node_id, {})
            labels = {str(key): str(value) for key, value in row.get("Labels", {}).items()}
            whole = _resources(total)
            # Ray's numbers are some moments old; what was just placed is known here.
            own = whole - reserved.get(node_id, Resources())
            reported = _resources(left)
            name = labels.get(NAME_LABEL) or row["NodeManagerHostname"]
            self._names[node_id] = name
            nodes.append(
                Node(
                    id=node_id,
                    name=name,
                    address=_address(labels, row["NodeManagerAddress"]),
                    labels=labels,
                    total=whole,
                    free=Resources(
                        cpus=min(own.cpus, reported.cpus),
                        gpus=min(own.gpus, reported.gpus),
                        memory_bytes=min(own.memory_bytes, reported.memory_bytes),
                    ),
                    accelerator_type=next(
                        (key[len(_ACCELERATOR) :] for key in total if key.startswith(_ACCELERATOR)),
                        "",
                    ),
                )
            )
        return nodes

    def start(self, spec: ServerSpec, node_id: str, resources: Resources) -> None:
        handle = (
            ray.remote(ServerActor)
            .options(
                name=actor_name(spec.name),
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=resources.cpus,
                num_gpus=resources.gpus,
                memory=resources.memory_bytes or None,
                max_restarts=-1,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(spec, self._folder(node_id))
        )
        self._servers[spec.name] = _Server(handle, node_id, resources)

    def reports(self) -> Mapping[str, ServerReport | ServerGone | ServerRefused | None]:
        now_s = time.monotonic()
        for server in self._servers.values():
            self._poll(server, now_s)
        self._end_stopped()
        return {name: server.latest for name, server in self._servers.items()}

    def write(self, server: str, file: str, content: bytes) -> None:
        if server in self._servers:
            self._servers[server].handle.write.remote(file, content)

    def stop(self, server: str, grace_s: float) -> None:
        stopped = self._servers.pop(server, None)
        if stopped is not None:
            self._stopping[server] = (stopped.handle, stopped.handle.stop.remote(grace_s))

    def stop_all(self, grace_s: float) -> int:
        """Waits until all servers have ended, or `grace_s` has passed twice."""
        count = len(self._servers)
        for name in list(self._servers):
            self.stop(name, grace_s)
        waiting = [reference for _, reference in self._stopping.values()]
        if waiting:
            ray.wait(waiting, num_returns=len(waiting), timeout=2 * grace_s + 5)
        for handle, _ in self._stopping.values():
            ray.kill(handle)
        self._stopping.clear()
        return count

    def last_lines(self, server: str, count: int) -> str:
        found = self._servers.get(server)
        if found is None:
            return "it is not running"
        try:
            lines: str = ray.get(found.handle.last_lines.remote(count), timeout=5.0)
        except ray.exceptions.RayError as error:
            return f"its supervisor does not answer: {_brief(error)}"
        return lines

    def look(self, repository: str, models: Sequence[str]) -> list[str]:
        tasks = [
            ray.remote(repository_problem)
            .options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
            )
            .remote(repository, list(models))
            for node in self.nodes()
        ]
        ready = ray.wait(tasks, num_returns=len(tasks), timeout=LOOK_S)[0] if tasks else []
        found: list[str] = []
        for task in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # The node is away.
                found.append(ray.get(task))
        return found

    def sweep(self, node_id: str, keep: frozenset[str]) -> None:
        self._sweeps[node_id] = (
            ray.remote(sweep_folder)
            .options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
            )
            .remote(self._folder(node_id), keep)
        )

    def is_swept(self, node_id: str) -> bool:
        if node_id not in self._sweeps:
            return False
        task = self._sweeps[node_id]
        if task is not None and ray.wait([task], timeout=0)[0]:
            self._sweeps[node_id] = task = None
        return task is None

    def _folder(self, node_id: str) -> str:
        if node_id not in self._names:
            self.nodes()
        return str(self._base / "nodes" / self._names.get(node_id, node_id))

    def _poll(self, server: _Server, now_s: float) -> None:
        if server.asked is None:
            server.asked, server.asked_at_s = server.handle.report.remote(), now_s
        ready, _ = ray.wait([server.asked], timeout=0)
        if not ready:
            silent_s = now_s - server.asked_at_s
            if server.latest is not None and silent_s > SILENCE_S:
                server.latest = ServerGone(f"its supervisor is silent for {silent_s:.0f} s")
            return
        try:
            answer = ray.get(server.asked)
        except ray.exceptions.RayError as error:
            server.latest = ServerGone(_brief(error))
        else:
            server.latest = ServerRefused(answer) if isinstance(answer, str) else answer
        server.asked = None

    def _end_stopped(self) -> None:
        for name, (handle, reference) in list(self._stopping.items()):
            ready, _ = ray.wait([reference], timeout=0)
            if ready:
                ray.kill(handle)
                del self._stopping[name]


def actor_name(server: str) -> str:
    return f"naiad-{server}"


def _address(labels: Mapping[str, str], rays: str) -> str:
    """The address that the operator gave the node, or Ray's."""
    try:
        return labelled_address(labels[ADDRESS_LABEL])
    except (KeyError, ValueError):
        return rays


def _resources(row: Mapping[str, float]) -> Resources:
    return Resources(
        cpus=row.get("CPU", 0.0), gpus=row.get("GPU", 0.0), memory_bytes=int(row.get("memory", 0))
    )


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
