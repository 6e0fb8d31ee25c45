"""Brings about what the cluster file says, and keeps it so.

In:  a cluster file, the machines. Out: servers that run, the router's config, a status.
Rule: one tick reads everything, decides by plan.py and begins what is next. The state is in a file,
      written before a server is started, so that a controller that was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from naiad import __version__
from naiad.cluster.autoscale import Autoscaler, LoadSample
from naiad.cluster.machines import Machines, ServerGone, ServerRefused
from naiad.cluster.placement import Node, PlacementPolicy, load_policy
from naiad.cluster.plan import Plan, ReplicaRecord, ReplicaState, make_plan
from naiad.cluster.router_load import RouterLoad, quantile
from naiad.cluster.routers import ROUTER, RouterFiles, RouterRecord, Routers
from naiad.cluster.spec import ClusterSpec, DeploymentSpec, RouterSpec, seconds
from naiad.cluster.supervisor import ServerReport, ServerSpec
from naiad.cluster.tokenizer_checks import tokenizer_problem
from naiad.errors import NaiadError, invalid_arg
from naiad.files.private_folder import private_folder, write_file
from naiad.keys.key_file import KeyFile

UNFIT_S = 60.0
ADOPT_S = 30.0
"""How long a controller that was started again takes its predecessor's word for a replica."""
MAX_PAUSE_S = 60.0
FIRST_PAUSE_S = 1.0
_LLM_BACKENDS = ("llm", "vllm", "tensorrtllm")
_KV_SETTINGS = {"kv_events_endpoint": "kv_events", "kv_events_replay_endpoint": "kv_replay"}
"""By setting of an engine: the port of the replica, and the field of the routers' config."""


class Trouble(msgspec.Struct):
    """Starts of a revision that failed."""

    count: int = 0
    reason: str = ""
    pause_until_s: float = 0.0


class ControllerState(msgspec.Struct, kw_only=True):
    spec: ClusterSpec = ClusterSpec()
    previous: ClusterSpec | None = None
    replicas: list[ReplicaRecord] = []
    routers: list[RouterRecord] = []
    node_names: dict[str, str] = {}
    """By id of a node: its name. An id ends with Ray's process, a name stays."""
    draining: set[str] = set()
    """Names of nodes."""
    next_number: int = 1
    rows: dict[str, dict[str, str]] = {}
    """By name of a replica: what the routers know of it."""
    secret: str = ""
    """The API key of the replicas, which the router sends; used if the router has keys."""


class Controller:
    def __init__(
        self,
        machines: Machines,
        folder: Path,
        head_id: str,
        read_router: Callable[[str, int], RouterLoad],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`head_id` is the node of the first router. `read_router` reads the load that a router
        reports at an address and a port."""
        self._machines = machines
        self._path = private_folder(folder) / "state.json"
        self._head_id = head_id
        self._routers = Routers(machines, head_id, read_router)
        self._clock = clock
        self._state = self._read_state()
        self._troubles: dict[tuple[str, str], Trouble] = {}
        self._unfit: dict[tuple[str, str], tuple[float, str]] = {}
        self._policies: dict[str, PlacementPolicy] = {}
        self._autoscalers: dict[str, Autoscaler] = {}
        self._wanted: dict[str, int] = {}
        self._load = RouterLoad()
        self._reports: dict[str, ServerReport] = {}
        self._problems: dict[str, str] = {}
        self._adopted: set[str] = set()
        """The replicas of a controller that was killed, of which there is no report yet."""
        self._was_seen: set[str] = set()
        self._first_token: dict[str, dict[str, float]] = {}
        self._adopt_records()

    # What an operator asks for.

    def apply(self, spec: ClusterSpec) -> None:
        """Raises NaiadError if the file cannot be brought about for a reason that is known now."""
        policies: dict[str, PlacementPolicy] = {}
        for deployment in spec.deployment:
            if name := deployment.placement.policy:
                policies[name] = load_policy(name)
        if spec.router.api_key_file:
            KeyFile(Path(spec.router.api_key_file)).read()
        for deployment in spec.deployment:
            # The first router is on this node. Those elsewhere are seen in `status`.
            if deployment.tokenizer and (problem := tokenizer_problem(deployment.tokenizer)):
                raise invalid_arg(
                    f"deployment '{deployment.name}': the head, which has a router, cannot use the "
                    f"tokenizer '{deployment.tokenizer}': {problem}"
                )
        state = self._state
        if state.spec.deployment and spec.router != state.spec.router:
            raise invalid_arg(
                "the router's fields cannot change while it serves: `naiad cluster down`, then "
                "apply the file again"
            )
        for deployment in spec.deployment:
            current = state.spec.find(deployment.name)
            if current is None or current.revision != deployment.revision:
                self._require_models(deployment)
        if spec != state.spec:
            state.previous, state.spec = state.spec, spec
        self._policies = policies
        self._troubles.clear()
        self._unfit.clear()
        self._autoscalers.clear()
        if not state.secret:
            state.secret = secrets.token_urlsafe(24)
        self._write_state()

    def _require_models(self, deployment: DeploymentSpec) -> None:
        """Nothing is stopped for models that no node can serve. Raises NaiadError."""
        found = self._machines.look(deployment.repository, deployment.models)
        if found and all(found):
            raise invalid_arg(f"deployment '{deployment.name}': {found[0]}, on every node")

    def rollback(self) -> ClusterSpec:
        """Raises NaiadError."""
        if self._state.previous is None:
            raise invalid_arg("there is no earlier cluster file to go back to")
        self.apply(self._state.previous)
        return self._state.spec

    def drain(self, node: str, is_draining: bool = True) -> None:
        """Raises NaiadError."""
        known = {each.name for each in self._machines.nodes()}
        known |= {each.address for each in self._machines.nodes()}
        if node not in known:
            raise invalid_arg(
                f"there is no node '{node}'; the nodes are {', '.join(sorted(known)) or 'none'}"
            )
        names = {each.name for each in self._machines.nodes() if node in (each.name, each.address)}
        if is_draining:
            self._state.draining |= names
        else:
            self._state.draining -= names
        self._write_state()

    def status(self) -> dict[str, Any]:
        state = self._state
        return {
            "version": __version__,
            "router": self._router_status(),
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "labels": node.labels,
                    "accelerator_type": node.accelerator_type,
                    "total": msgspec.to_builtins(node.total),
                    "free": msgspec.to_builtins(node.free),
                    "state": "draining" if node.is_draining else "ready",
                    "replicas": [each.name for each in state.replicas if each.node_id == node.id],
                }
                for node in self._nodes()
            ],
            "deployments": [self._deployment_status(each) for each in state.spec.deployment],
        }

    def last_lines(self, name: str, count: int) -> str:
        """`name` is a replica's or a deployment's. Raises NaiadError."""
        state = self._state
        servers = [
            (each.name, each.node_id)
            for each in state.replicas
            if name in (each.name, each.deployment)
        ]
        servers += [
            (each.name, each.node_id) for each in state.routers if name in (each.name, ROUTER)
        ]
        if not servers:
            raise invalid_arg(f"there is no replica, router or deployment '{name}'")
        lines = []
        for server, node_id in servers:
            mark = f"[{state.node_names.get(node_id, node_id)}/{server}]"
            text = self._machines.last_lines(server, count)
            lines += [f"{mark} {line}".rstrip() for line in text.splitlines()]
        return "\n".join(lines)

    @property
    def router_spec(self) -> RouterSpec:
        return self._state.spec.router

    @property
    def is_settled(self) -> bool:
        """True if everything is as the file says."""
        state = self._state
        if state.spec.deployment and not self._are_routers_ready():
            return False
        return (
            not self._problems
            and all(
                sum(
                    each.state is ReplicaState.READY and each.revision == deployment.revision
                    for each in state.replicas
                    if each.deployment == deployment.name
                )
                == self._wanted.get(deployment.name, 0)
                == sum(each.deployment == deployment.name for each in state.replicas)
                for deployment in state.spec.deployment
            )
            and all(state.spec.find(each.deployment) for each in state.replicas)
        )

    # What happens by itself.

    def tick(self) -> None:
        """Called about once a second."""
        now_s = self._clock()
        nodes = self._nodes()
        self._greet(nodes)
        self._read_reports(now_s, nodes)
        self._keep_routers(nodes)
        self._read_load(now_s, nodes)
        plan = make_plan(
            self._state.spec, self._wanted, self._state.replicas, nodes, self._policies
        )
        failed = self._failed_starts()
        self._problems = {
            name: "; ".join(filter(None, (plan.problems.get(name), failed.get(name))))
            for name in {**plan.problems, **failed}
        }
        self._carry_out(plan, now_s, nodes)
        self._stop_drained(now_s)
        self._write_router_config()

    def _failed_starts(self) -> dict[str, str]:
        current = {(each.name, each.revision) for each in self._state.spec.deployment}
        return {
            name: f"{trouble.count} starts failed, the last: {trouble.reason}"
            for (name, revision), trouble in self._troubles.items()
            if (name, revision) in current
        }

    def _nodes(self) -> list[Node]:
        now_s = self._clock()
        self._unfit = {key: entry for key, entry in self._unfit.items() if entry[0] > now_s}
        return [
            msgspec.structs.replace(
                node,
                is_draining=node.name in self._state.draining,
                is_joining=not self._machines.is_swept(node.id),
                unfit={
                    deployment: reason
                    for (deployment, node_id), (_, reason) in self._unfit.items()
                    if node_id == node.id
                },
            )
            for node in self._machines.nodes()
        ]

    def _greet(self, nodes: Sequence[Node]) -> None:
        """Ends what an earlier cluster left on a node that is new."""
        for node in nodes:
            if node.id in self._was_seen:
                continue
            self._was_seen.add(node.id)
            self._state.node_names[node.id] = node.name
            keep = {each.name for each in self._state.replicas if each.node_id == node.id}
            keep |= {each.name for each in self._state.routers if each.node_id == node.id}
            self._machines.sweep(node.id, frozenset(keep))

    def _adopt_records(self) -> None:
        """Gives the replicas of a controller that was killed to their nodes, by the nodes' names,
        so that what runs there goes on."""
        state = self._state
        ids = {node.name: node.id for node in self._machines.nodes()}
        for router in state.routers:
            name = state.node_names.get(router.node_id, "")
            is_first = router.index == 0
            router.node_id = self._head_id if is_first else ids.get(name, router.node_id)
        for replica in state.replicas:
            name = state.node_names.get(replica.node_id, "")
            replica.node_id = ids.get(name, replica.node_id)
            replica.since_s = self._clock()  # another process's clock began elsewhere
            deployment = state.spec.find(replica.deployment)
            is_here = replica.node_id in ids.values()
            if is_here and deployment is not None and replica.revision == deployment.revision:
                self._adopted.add(replica.name)
                self._start_replica(replica, deployment, self._machines.nodes())
        for deployment in state.spec.deployment:
            if name := deployment.placement.policy:
                with contextlib.suppress(NaiadError):
                    self._policies[name] = load_policy(name)
            count = sum(
                each.deployment == deployment.name and each.state is not ReplicaState.DRAINING
                for each in state.replicas
            )
            self._wanted[deployment.name] = _first_count(deployment, count)

    def _read_reports(self, now_s: float, nodes: Sequence[Node]) -> None:
        reports = self._machines.reports()
        alive = {node.id for node in nodes}
        self._reports = {
            name: report for name, report in reports.items() if isinstance(report, ServerReport)
        }
        for replica in list(self._state.replicas):
            deployment = self._state.spec.find(replica.deployment)
            report = reports.get(replica.name)
            if replica.state is ReplicaState.DRAINING:
                continue
            if replica.node_id not in alive:
                self._set(replica, ReplicaState.UNREACHABLE, "its node is away", now_s)
                continue
            is_new = replica.name in self._adopted
            if isinstance(report, ServerReport) or now_s - replica.since_s > ADOPT_S:
                self._adopted.discard(replica.name)
            match report:
                case ServerReport(is_ready=True):
                    self._set(replica, ReplicaState.READY, "", now_s)
                    self._troubles.pop((replica.deployment, replica.revision), None)
                case ServerReport():
                    self._set(replica, ReplicaState.STARTING, report.reason, now_s)
                case ServerRefused():
                    self._fail(replica, report.reason, now_s)
                    continue
                case ServerGone() if not is_new:
                    self._set(replica, ReplicaState.UNREACHABLE, report.reason, now_s)
                case None if not is_new:
                    if replica.state is ReplicaState.READY:
                        self._set(replica, ReplicaState.UNREACHABLE, "no report yet", now_s)
            if deployment is None or replica.state is ReplicaState.READY:
                continue
            limit_s = seconds(deployment.start_timeout, "start_timeout")
            if now_s - replica.since_s > limit_s:
                self._fail(
                    replica,
                    f"it was not ready within {deployment.start_timeout}: {replica.reason}",
                    now_s,
                )

    def _set(self, replica: ReplicaRecord, state: ReplicaState, reason: str, now_s: float) -> None:
        if replica.state is not state:
            replica.state, replica.since_s = state, now_s
        replica.reason = reason

    def _fail(self, replica: ReplicaRecord, reason: str, now_s: float) -> None:
        """Ends a replica that does not start, and makes its deployment wait before the next."""
        self._unfit[replica.deployment, replica.node_id] = (now_s + UNFIT_S, reason)
        trouble = self._troubles.setdefault((replica.deployment, replica.revision), Trouble())
        trouble.count += 1
        trouble.reason = reason
        pause_s = min(FIRST_PAUSE_S * 2 ** (trouble.count - 1), MAX_PAUSE_S)
        trouble.pause_until_s = now_s + pause_s
        self._state.replicas.remove(replica)
        self._machines.stop(replica.name, 0.0)
        self._write_state()

    def _read_load(self, now_s: float, nodes: Sequence[Node]) -> None:
        spec = self._state.spec
        self._load = self._routers.load(spec.router, nodes, self._state.routers)
        for deployment in spec.deployment:
            own = [each for each in self._state.replicas if each.deployment == deployment.name]
            if deployment.autoscaling is None:
                self._wanted[deployment.name] = (
                    1 if deployment.replicas is None else deployment.replicas
                )
                continue
            scaler = self._autoscalers.get(deployment.name)
            if scaler is None:
                scaler = self._autoscalers[deployment.name] = Autoscaler(deployment.autoscaling)
            sample = LoadSample(
                now_s,
                sum(self._load.in_flight.get(each.name, 0.0) for each in own)
                + sum(self._load.waiting.get(model, 0.0) for model in deployment.models),
                self._first_token_ms(deployment.name, own),
            )
            count = self._wanted.get(deployment.name, deployment.autoscaling.min_replicas)
            self._wanted[deployment.name] = scaler.decide(sample, count)

    def _first_token_ms(self, deployment: str, own: Sequence[ReplicaRecord]) -> float:
        """The 90th percentile since the last tick."""
        now: dict[str, float] = {}
        for replica in own:
            report = self._reports.get(replica.name)
            for bound, count in ({} if report is None else report.first_token_buckets).items():
                now[bound] = now.get(bound, 0.0) + count
        before = self._first_token.get(deployment, {})
        self._first_token[deployment] = now
        fresh = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        return 0.0 if min(fresh.values(), default=0.0) < 0 else quantile(fresh, 0.9) * 1000

    def _carry_out(self, plan: Plan, now_s: float, nodes: Sequence[Node]) -> None:
        state = self._state
        for drain in plan.drains:
            replica = next(each for each in state.replicas if each.name == drain.replica)
            self._set(replica, ReplicaState.DRAINING, drain.reason, now_s)
        started: list[tuple[ReplicaRecord, DeploymentSpec]] = []
        for start in plan.starts:
            deployment = state.spec.find(start.deployment)
            assert deployment is not None
            trouble = self._troubles.get((deployment.name, deployment.revision))
            if trouble is not None and now_s < trouble.pause_until_s:
                continue
            replica = ReplicaRecord(
                name=f"{deployment.name}-{state.next_number}",
                deployment=deployment.name,
                revision=deployment.revision,
                node_id=start.choice.node_id,
                placed_because=start.choice.reason,
                since_s=now_s,
                reason="it starts",
            )
            state.next_number += 1
            state.replicas.append(replica)
            started.append((replica, deployment))
        if plan.drains or started:
            self._write_state()
        for replica, deployment in started:
            self._start_replica(replica, deployment, nodes)

    def _start_replica(
        self, replica: ReplicaRecord, deployment: DeploymentSpec, nodes: Sequence[Node]
    ) -> None:
        node = next((each for each in nodes if each.id == replica.node_id), None)
        if node is None:
            return
        self._machines.start(
            self._replica_spec(replica, deployment, node), node.id, deployment.resources.resources
        )

    def _replica_spec(
        self, replica: ReplicaRecord, deployment: DeploymentSpec, node: Node
    ) -> ServerSpec:
        chosen: list[str] = []
        if deployment.models:
            chosen.append("--model-control-mode=explicit")
            chosen += [f"--load-model={model}" for model in deployment.models]
        if deployment.tokenizer:
            for setting, port in _KV_SETTINGS.items():
                endpoint = f"tcp://{node.url_host}:{{{port}}}"
                chosen += [
                    f"--backend-config={backend},{setting}={endpoint}" for backend in _LLM_BACKENDS
                ]
        environment = dict(deployment.environment)
        # Options of the server, which its models can read as well.
        environment["NAIAD_NODE_NAME"] = node.name
        environment["NAIAD_REPLICA_NAME"] = replica.name
        if self._state.spec.router.api_key_file:
            environment["NAIAD_API_KEY"] = self._state.secret
        return ServerSpec(
            name=replica.name,
            arguments=(
                "serve",
                f"--model-repository={deployment.repository}",
                f"--http-address={node.address}",
                f"--grpc-address={node.address}",
                f"--metrics-address={node.address}",
                "--http-port={http}",
                "--grpc-port={grpc}",
                "--metrics-port={metrics}",
                *chosen,
                *deployment.arguments,
            ),
            environment=environment,
            address=node.address,
            repository=deployment.repository,
            version=__version__,
            hang_timeout_s=seconds(deployment.hang_timeout, "hang_timeout"),
            publishes_kv_events=bool(deployment.tokenizer),
        )

    def _stop_drained(self, now_s: float) -> None:
        state = self._state
        for replica in list(state.replicas):
            if replica.state is not ReplicaState.DRAINING:
                continue
            deployment = state.spec.find(replica.deployment)
            limit_s = 60.0 if deployment is None else seconds(deployment.drain_timeout, "drain")
            waited_s = now_s - replica.since_s
            is_busy = self._load.in_flight.get(replica.name, 0.0) > 0
            if not self._load.is_known and waited_s < limit_s:
                continue
            # The router reads its new config within a second or two; until then it sends more.
            if waited_s < 2.0 or (is_busy and waited_s < limit_s):
                continue
            self._machines.stop(replica.name, max(1.0, limit_s - waited_s))
            state.replicas.remove(replica)
            self._write_state()

    # The routers.

    def _keep_routers(self, nodes: Sequence[Node]) -> None:
        state = self._state
        if not state.spec.deployment:
            return
        if self._routers.place(state.spec.router, nodes, state.routers, self._router_name):
            self._write_state()
        if self._routers.read_checks(state.routers, self._reports):
            self._write_state()
        self._routers.start(
            state.spec.router, state.secret, nodes, state.routers, self._router_files()
        )

    def _router_name(self) -> str:
        number = self._state.next_number
        self._state.next_number += 1
        return f"{ROUTER}-{number}"

    def _write_router_config(self) -> None:
        if self._state.spec.deployment:
            self._routers.write(self._state.spec.router, self._state.routers, self._router_files())

    def _router_files(self) -> Callable[[RouterRecord], RouterFiles]:
        """Returns a function that makes the files of a router. Routers whose nodes can use all
        tokenizers get the same."""
        nodes = {node.id: node for node in self._nodes()}
        rows = self._router_rows(nodes)
        tokenizers = {
            deployment.name: deployment.tokenizer
            for deployment in self._state.spec.deployment
            if deployment.tokenizer
        }
        paths = msgspec.json.encode(sorted(set(tokenizers.values())))

        # A router without pyzmq would not add a replica that has KV events.
        silent = [
            {key: value for key, value in row.items() if key not in _KV_SETTINGS.values()}
            for row in rows
        ]

        @functools.cache
        def config(unusable: frozenset[str], has_zmq: bool) -> bytes:
            return self._router_config(nodes, rows if has_zmq else silent, unusable)

        def make(record: RouterRecord) -> RouterFiles:
            unusable = frozenset(
                name for name, path in tokenizers.items() if not record.can_use(path)
            )
            return RouterFiles(config(unusable, record.has_zmq), paths)

        return make

    def _router_rows(self, nodes: Mapping[str, Node]) -> list[dict[str, str]]:
        rows = []
        for replica in self._state.replicas:
            report = self._reports.get(replica.name)
            if replica.state is ReplicaState.DRAINING or report is None:
                # One whose supervisor is away keeps its row: the router sees for itself.
                previous = self._state.rows.get(replica.name)
                if replica.state is not ReplicaState.DRAINING and previous is not None:
                    rows.append(previous)
                continue
            node = nodes.get(replica.node_id)
            if node is None:
                continue
            row = {
                "name": replica.name,
                "url": f"http://{node.url_host}:{report.ports['http']}",
                "grpc": f"{node.url_host}:{report.ports['grpc']}",
                "node": node.name,
                "note": replica.placed_because,
            }
            for port in _KV_SETTINGS.values():
                if port in report.ports:
                    row[port] = f"tcp://{node.url_host}:{report.ports[port]}"
            rows.append(row)
        known = {row["name"]: row for row in rows}
        if known != self._state.rows:
            self._state.rows = known
            self._write_state()
        return rows

    def _router_config(
        self, nodes: Mapping[str, Node], rows: Sequence[dict[str, str]], unusable: frozenset[str]
    ) -> bytes:
        """`unusable` are the deployments whose tokenizer the router's node cannot use. Their
        prompts are compared as texts."""
        spec = self._state.spec
        asleep = [
            model
            for deployment in spec.deployment
            if deployment.autoscaling is not None and deployment.autoscaling.min_replicas == 0
            for model in deployment.models
        ]
        models = {
            model: {
                "policy": deployment.router_policy,
                "tokenizer": "" if deployment.name in unusable else deployment.tokenizer,
            }
            # The first pattern that matches counts, so models that are named come before "*".
            for deployment in sorted(spec.deployment, key=lambda each: not each.models)
            if deployment.router_policy or deployment.tokenizer
            for model in deployment.models or ("*",)
        }
        return msgspec.json.encode(
            {
                "replica": rows,
                "node": [_node_row(node) for node in nodes.values()],
                "policy": spec.router.policy,
                "model": models,
                "asleep": asleep,
                "max_wait_s": seconds(spec.router.max_wait, "max_wait"),
            }
        )

    def _are_routers_ready(self) -> bool:
        records = self._state.routers
        reports = [self._reports.get(record.name) for record in records]
        return len(records) == self._state.spec.router.count and all(
            report is not None and report.is_running for report in reports
        )

    def _router_status(self) -> dict[str, Any]:
        state = self._state
        router = state.spec.router
        rows = self._routers.status(router, state.routers, state.node_names, self._reports)
        is_running = any(row["state"] == "running" for row in rows)
        return {
            "state": "running" if is_running else "away",
            "http": f"http://{router.address}:{router.http_port}",
            "grpc": f"{router.address}:{router.grpc_port}",
            "metrics": f"http://{router.address}:{router.metrics_port}/metrics",
            "routers": rows,
        }

    def _deployment_status(self, deployment: DeploymentSpec) -> dict[str, Any]:
        names = self._state.node_names
        own = [each for each in self._state.replicas if each.deployment == deployment.name]
        return {
            "name": deployment.name,
            "revision": deployment.revision,
            "wanted": self._wanted.get(deployment.name, 0),
            "ready": sum(each.state is ReplicaState.READY for each in own),
            "problem": self._problems.get(deployment.name, ""),
            "replicas": [
                {
                    "name": each.name,
                    "node": names.get(each.node_id, each.node_id),
                    "state": each.state.value,
                    "reason": each.reason,
                    "placed_because": each.placed_because,
                    "revision": each.revision,
                    "since_s": each.since_s,
                    "in_flight": self._load.in_flight.get(each.name, 0.0),
                    "ejected_models": self._load.ejected.get(each.name, 0.0),
                    **self._process_status(each.name),
                    "url": self._state.rows.get(each.name, {}).get("url", ""),
                    "metrics": self._metrics_url(each.name),
                }
                for each in own
            ],
        }

    def _metrics_url(self, replica: str) -> str:
        report, row = self._reports.get(replica), self._state.rows.get(replica)
        if report is None or row is None:
            return ""
        return f"{row['url'].rpartition(':')[0]}:{report.ports['metrics']}/metrics"

    def _process_status(self, replica: str) -> dict[str, Any]:
        report = self._reports.get(replica)
        if report is None:
            return {"pid": 0, "supervisor_pid": 0, "restarts": 0, "hangs": 0}
        return {
            "pid": report.pid,
            "supervisor_pid": report.supervisor_pid,
            "restarts": report.num_restarts,
            "hangs": report.num_hangs,
        }

    # The state's file.

    def _read_state(self) -> ControllerState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ControllerState)
        except FileNotFoundError:
            return ControllerState()
        except (OSError, msgspec.DecodeError) as error:
            raise invalid_arg(
                f"the state of the cluster, '{self._path}', cannot be read: {error}. Move it away "
                "to begin anew; what runs is then ended."
            ) from None

    def _write_state(self) -> None:
        with contextlib.suppress(OSError):  # A full disk must not stop what serves.
            write_file(self._path, msgspec.json.encode(self._state))


def _node_row(node: Node) -> dict[str, Any]:
    """A node as the routers' admin API shows it."""
    return {
        "name": node.name,
        "address": node.address,
        "state": "draining" if node.is_draining else "ready",
        "accelerator_type": node.accelerator_type,
        "labels": node.labels,
        "cpus": node.total.cpus,
        "gpus": node.total.gpus,
        "free_cpus": round(node.free.cpus, 3),
        "free_gpus": round(node.free.gpus, 3),
    }


def _first_count(deployment: DeploymentSpec, count: int) -> int:
    if deployment.autoscaling is None:
        return 1 if deployment.replicas is None else deployment.replicas
    limits = deployment.autoscaling
    return min(max(count, limits.min_replicas), limits.max_replicas)
