"""The metrics page of the router.

Rule: the labels are names of replicas and of models that a replica has served, so their number is
      bounded by the fleet and not by what clients send.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from naiad.metrics.exposition import COUNTER, GAUGE, Block, label_text, page, with_labels
from naiad.metrics.loop_lag import LoopLag
from naiad.router.breaker import BreakerState
from naiad.router.core import RouterCore
from naiad.router.replica import Replica, ReplicaState

_REPLICA_COUNTERS = {
    "requests": "Requests sent to a replica, retries included",
    "connect_failures": "Requests for which no connection to a replica could be opened",
    "lost": "Requests whose replica closed the connection before its response was complete",
    "refused": "Responses by which a replica refused a request for want of room",
    "not_admitted": "Requests that a replica refused to begin with and another one got",
    "server_errors": "Responses of a replica with a server error",
    "ejections": "Times that a replica was ejected as an outlier",
}
_ROUTER_COUNTERS = {
    "retries": "Requests that were sent again",
    "failures": "Requests that failed because their replica failed and they could not be sent "
    "again",
    "no_replica": "Requests that no replica could serve",
    "broken_streams": "Responses that broke off because their replica failed",
    "cancelled": "Requests whose client left before the response",
    "policy_failures": "Decisions in which a policy failed and least_load decided",
    "config_failures": "Times that the config file could not be read again",
}


class RouterMetrics:
    def __init__(
        self,
        core: RouterCore,
        lag: LoopLag,
        connections: Callable[[], dict[str, int]],
        router_name: str = "",
    ) -> None:
        """`connections` returns the open connections of clients by protocol. `router_name` is a
        label of all metrics; it may be empty."""
        self._router_name = router_name
        self._core = core
        self._lag = lag
        self._connections = connections

    def render(self) -> bytes:
        core, fleet = self._core, self._core.fleet
        now_s = time.monotonic()
        blocks: list[Block] = []

        def block(name: str, kind: str, help: str) -> Block:
            blocks.append(Block(f"naiad_router_{name}", kind, help))
            return blocks[-1]

        for key, help in _ROUTER_COUNTERS.items():
            block(f"{key}_total", COUNTER, help).add("", core.counters[key])
        block(
            "retries_refused_total", COUNTER, "Retries for which the retry budget had nothing left"
        ).add("", core.retries.num_refused)
        block("sequences", GAUGE, "Sequences whose replica is remembered").add(
            "", len(core.sequences)
        )
        waiting = block(
            "waiting_requests", GAUGE, "Requests that wait for the first replica of a model"
        )
        for model, count in core.waiting.items():
            waiting.add(label_text({"model": model}), count)
        clients = block("client_connections", GAUGE, "Open connections of clients")
        for protocol, count in self._connections().items():
            clients.add(label_text({"protocol": protocol}), count)
        replicas = [*fleet, *fleet.leaving]
        for key, help in _REPLICA_COUNTERS.items():
            counter = block(f"replica_{key}_total", COUNTER, help)
            for replica in replicas:
                counter.add(label_text(_labels(replica)), replica.counters[key])
        in_flight = block("replica_in_flight", GAUGE, "Requests that a replica works on")
        up = block("replica_ready", GAUGE, "1 if a replica is ready and gets requests")
        breaker = block(
            "replica_breaker_open", GAUGE, "1 if the breaker of a replica's HTTP port is not closed"
        )
        grpc_breaker = block(
            "replica_grpc_breaker_open",
            GAUGE,
            "1 if the breaker of a replica's gRPC port is not closed",
        )
        requests = block(
            "model_responses_total", COUNTER, "Responses of a replica to requests of a model"
        )
        waits = block(
            "model_wait_seconds_total",
            COUNTER,
            "Time from sending requests of a model to the first byte of their responses",
        )
        ejected = block(
            "model_ejected", GAUGE, "1 while a replica gets no requests of a model as an outlier"
        )
        for replica in replicas:
            label = label_text(_labels(replica))
            in_flight.add(label, replica.num_in_flight)
            is_up = replica.state is ReplicaState.READY and not replica.is_draining
            up.add(label, int(is_up))
            breaker.add(label, int(replica.breaker.state is not BreakerState.CLOSED))
            if replica.spec.grpc:
                state = replica.grpc_breaker.state
                grpc_breaker.add(label, int(state is not BreakerState.CLOSED))
            for model, record in replica.records.items():
                if not model:
                    continue
                both = label_text({**_labels(replica), "model": model})
                requests.add(both, record.total_requests)
                waits.add(both, record.total_duration_s)
                ejected.add(both, int(record.ejected_until_s > now_s))
        busy = Block(
            "naiad_event_loop_busy_max_seconds",
            GAUGE,
            "Longest time that the event loop computed without a pause since the start",
        )
        busy.add("", self._lag.max_busy_s)
        return with_labels(page([*blocks, busy]), {"router": self._router_name})


def _labels(replica: Replica) -> dict[str, str]:
    node = replica.spec.node
    return {"replica": replica.name, "node": node} if node else {"replica": replica.name}
