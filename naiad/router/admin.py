"""The admin API: what the router knows about its replicas, and how to change them.

    GET    /router/replicas               all replicas: state and why, models, load, breaker
    POST   /router/replicas               add one: {"url": ..., "grpc": ..., "name": ...}
    GET    /router/replicas/NAME          one replica
    DELETE /router/replicas/NAME          remove it; its requests finish
    POST   /router/replicas/NAME/drain    no new requests; sequences and requests go on
    POST   /router/replicas/NAME/resume   end a drain
    POST   /router/replicas/NAME/check    check its health now, e.g. after a model was loaded
    GET    /router/models                 per model: policy, and the replicas that may serve it now
    GET    /router/nodes                  per machine: its replicas, their load, what is free there
    GET    /router/targets                the replicas' metrics pages, for Prometheus' http_sd

Rule: with API keys, a key needs the scope model-repository (statistics for the GET routes). Without
      keys only clients on this machine may use it, unless --remote-admin is given.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from naiad.errors import Code, NaiadError, invalid_arg
from naiad.frontends.http.browser_check import BrowserCheck
from naiad.frontends.http.response import respond_error, respond_json
from naiad.frontends.http.routes import Entry, Names, RouteBuilder, simple
from naiad.keys.api_class import MODEL_REPOSITORY, STATISTICS
from naiad.keys.forwarded import forwarding_field
from naiad.router.breaker import BreakerState
from naiad.router.config import NodeSpec, ReplicaSpec
from naiad.router.core import RouterCore
from naiad.router.replica import Replica, ReplicaState
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

_MAX_BODY_BYTES = 16 * 1024
_REPLICA = r"/router/replicas/(?P<replica>[^/]+)"
_spec_decoder = msgspec.json.Decoder(ReplicaSpec)


class AdminApi:
    def __init__(
        self, core: RouterCore, check_soon: Callable[[Replica], None], *, is_local_only: bool
    ) -> None:
        """`check_soon` checks the health of a replica. `is_local_only` is False where keys protect
        the routes, or the operator opens them."""
        self._core = core
        self._check_soon = check_soon
        self._is_local_only = is_local_only
        self._browser_check = BrowserCheck(frozenset())

    def entries(self) -> list[Entry]:
        act = self._route
        return [
            Entry("GET", "/router/replicas", STATISTICS, act(self._list)),
            Entry("POST", "/router/replicas", MODEL_REPOSITORY, act(self._add)),
            Entry("GET", _REPLICA, STATISTICS, act(self._show)),
            Entry("DELETE", _REPLICA, MODEL_REPOSITORY, act(self._remove)),
            Entry("POST", _REPLICA + "/drain", MODEL_REPOSITORY, act(self._drain)),
            Entry("POST", _REPLICA + "/resume", MODEL_REPOSITORY, act(self._resume)),
            Entry("POST", _REPLICA + "/check", MODEL_REPOSITORY, act(self._check)),
            Entry("GET", "/router/models", STATISTICS, act(self._models)),
            Entry("GET", "/router/nodes", STATISTICS, act(self._nodes)),
            Entry("GET", "/router/targets", STATISTICS, act(self._targets)),
        ]

    def _route(self, handle: Callable[[Exchange, Names], None]) -> RouteBuilder:
        def guarded(exchange: Exchange, names: Names) -> None:
            try:
                field = forwarding_field(exchange.head.headers)
                if self._is_local_only and (field or not _is_loopback(exchange.peer_host)):
                    raise NaiadError(
                        Code.PERMISSION_DENIED,
                        "the admin API is open to clients on the router's machine only"
                        + (f", and the field '{field}' is that of a proxy" if field else "")
                        + ": use --api-key-file, or --remote-admin to open it to everybody",
                    )
                if self._is_local_only and not self._browser_check.is_own_host(exchange.head):
                    # A page whose name was made to point to this machine would act as the operator.
                    raise NaiadError(
                        Code.PERMISSION_DENIED,
                        "the admin API is open to this machine only, so it does not respond under "
                        "the name of another: call it by the router's address",
                    )
                handle(exchange, names)
            except NaiadError as error:
                respond_error(exchange, error)

        return simple(guarded, _MAX_BODY_BYTES)

    def _list(self, exchange: Exchange, names: Names) -> None:
        fleet = self._core.fleet
        rows = [replica_row(replica) for replica in (*fleet, *fleet.leaving)]
        respond_json(exchange, msgspec.json.encode({"replicas": rows}))

    def _show(self, exchange: Exchange, names: Names) -> None:
        replica = self._core.fleet.find(names["replica"])
        respond_json(exchange, msgspec.json.encode(replica_row(replica)))

    def _add(self, exchange: Exchange, names: Names) -> None:
        try:
            spec = _spec_decoder.decode(exchange.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid_arg(f"not a replica: {error}") from None
        replica = self._core.fleet.add(spec, "api")
        exchange.respond(201, JSON_TYPE, msgspec.json.encode(replica_row(replica)))

    def _remove(self, exchange: Exchange, names: Names) -> None:
        replica = self._core.fleet.remove(names["replica"])
        respond_json(exchange, msgspec.json.encode(replica_row(replica)))

    def _drain(self, exchange: Exchange, names: Names) -> None:
        replica = self._core.fleet.drain(names["replica"])
        respond_json(exchange, msgspec.json.encode(replica_row(replica)))

    def _resume(self, exchange: Exchange, names: Names) -> None:
        replica = self._core.fleet.drain(names["replica"], is_draining=False)
        respond_json(exchange, msgspec.json.encode(replica_row(replica)))

    def _check(self, exchange: Exchange, names: Names) -> None:
        replica = self._core.fleet.find(names["replica"])
        self._check_soon(replica)
        respond_json(exchange, msgspec.json.encode(replica_row(replica)))

    def _models(self, exchange: Exchange, names: Names) -> None:
        core = self._core
        rows = [
            {
                "name": name,
                "policy": core.routing(name).policy_name,
                "replicas": sorted(replica.name for replica in core.fleet.candidates(name)),
            }
            for name in core.fleet.model_names()
        ]
        respond_json(exchange, msgspec.json.encode({"models": rows}))

    def _nodes(self, exchange: Exchange, names: Names) -> None:
        rows = node_rows(self._core.config.node, list(self._core.fleet))
        respond_json(exchange, msgspec.json.encode({"nodes": rows}))

    def _targets(self, exchange: Exchange, names: Names) -> None:
        rows = [
            {
                "targets": [replica.spec.http_address.authority],
                "labels": {
                    "node": replica.spec.node,
                    "note": replica.spec.note,
                    "replica": replica.name,
                    "__scheme__": "https" if replica.spec.http_address.is_tls else "http",
                },
            }
            for replica in self._core.fleet
        ]
        respond_json(exchange, msgspec.json.encode(rows))


def node_rows(nodes: Sequence[NodeSpec], replicas: Sequence[Replica]) -> list[dict[str, Any]]:
    """One row per machine, by name. Replicas whose machine has no name are counted by the host of
    their address."""
    known = {node.name: node for node in nodes}
    by_node: dict[str, list[Replica]] = {name: [] for name in known}
    for replica in replicas:
        by_node.setdefault(replica.spec.node or replica.spec.http_address.host, []).append(replica)
    return [
        {
            **msgspec.to_builtins(known.get(name) or NodeSpec(name)),
            "replicas": [
                {
                    "name": replica.name,
                    "state": "draining" if replica.is_draining else replica.state.value,
                    "in_flight": replica.num_in_flight,
                    "models": sorted(replica.models),
                    "note": replica.spec.note,
                }
                for replica in own
            ],
            "ready": sum(
                replica.state is ReplicaState.READY and not replica.is_draining for replica in own
            ),
            "in_flight": sum(replica.num_in_flight for replica in own),
        }
        for name, own in sorted(by_node.items())
    ]


def replica_row(replica: Replica) -> dict[str, Any]:
    now_s = time.monotonic()
    return {
        "name": replica.name,
        "url": replica.spec.url,
        "grpc": replica.spec.grpc,
        "node": replica.spec.node,
        "source": replica.source,
        "state": "draining" if replica.is_draining else replica.state.value,
        "health": replica.state.value,
        "reason": _reason(replica, now_s),
        "in_flight": replica.num_in_flight,
        "breaker": replica.breaker.state.value,
        "grpc_breaker": replica.grpc_breaker.state.value if replica.spec.grpc else None,
        "models": sorted(replica.models),
        "unserved_models": replica.unserved_models,
        "ejected": {
            model: record.reason
            for model, record in replica.records.items()
            if record.ejected_until_s > now_s
        },
        "counters": dict(replica.counters),
    }


def _reason(replica: Replica, now_s: float) -> str:
    parts = [replica.reason] if replica.reason else []
    if replica.breaker.state is BreakerState.OPEN:
        wait_s = max(0.0, replica.breaker.retry_s - now_s)
        parts.append(
            f"{replica.breaker.num_failures} requests in a row could not reach it; the next trial "
            f"is in {wait_s:.1f} s"
        )
    return "; ".join(parts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
