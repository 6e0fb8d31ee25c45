"""All replicas of a router, and which of them may get a request of a model now.

In:  additions and removals, health checks, outcomes of requests. Out: `candidates(model)`.
Rule: the candidates of a model are computed when something has changed, not per request. Tiers, of
      which the first that is not empty counts: ready replicas; those of them that have just refused
      a request of the model; replicas that live but are not ready; replicas that were ejected as
      outliers. A replica that is down, is draining or has an open breaker is in none of them, nor
      is one without a gRPC port for gRPC.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator

from naiad import log
from naiad.errors import NaiadError, invalid_arg, not_found
from naiad.router.address import is_same_place
from naiad.router.breaker import BreakerState
from naiad.router.config import ReplicaSpec, RouterConfig, check_replica
from naiad.router.outlier import OutlierDetector, OutlierRecord
from naiad.router.replica import Replica, ReplicaState


class Fleet:
    def __init__(
        self,
        config: RouterConfig,
        *,
        on_added: Callable[[Replica], None] | None = None,
        on_removed: Callable[[Replica], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_added` opens what a replica needs; `on_removed` is called when its last request has
        ended."""
        self.config = config
        self.replicas: dict[str, Replica] = {}
        self.leaving: set[Replica] = set()
        """Replicas that were removed and still have requests."""
        self.detector = OutlierDetector(config.outlier, clock_s)
        self.on_unreachable: Callable[[Replica], None] | None = None
        """Called when a request could not reach a replica: its health is worth a check."""
        self.own_places: set[tuple[str, int]] = set()
        """Host and port of the router's own sockets, which are no replicas."""
        self.own_id = secrets.token_hex(8)
        """Health checks carry it: a replica that knows it is this router, by whatever name."""
        self.generation = 0
        """Grows whenever the candidates of a model may have changed."""
        self._clock_s = clock_s
        self._on_added = on_added
        self._on_removed = on_removed
        self._candidates: dict[tuple[str, str, bool, bool], list[Replica]] = {}
        self._valid_until_s = math.inf
        """When a breaker or an ejection ends next."""

    # Membership.

    def add(self, spec: ReplicaSpec, source: str) -> Replica:
        """Raises NaiadError for a replica that is there already."""
        check_replica(spec)
        name, authority = spec.full_name, spec.http_address.authority
        for address in filter(None, (spec.http_address, spec.grpc_address)):
            if any(is_same_place(address, host, port) for host, port in self.own_places):
                raise invalid_arg(
                    f"replica '{name}': {address.authority} is the address of this router itself"
                )
        for other in self.replicas.values():
            if other.name == name:
                raise invalid_arg(f"there is a replica with the name '{name}' already")
            if other.spec.http_address.authority == authority:
                raise invalid_arg(f"the replica '{other.name}' has the url '{spec.url}' already")
        replica = Replica(spec, self.config.breaker, self._clock_s, source)
        if self._on_added is not None:
            self._on_added(replica)
        self.replicas[name] = replica
        self.changed()
        log.info(f"replica '{name}' added: {spec.url}")
        return replica

    def find(self, name: str) -> Replica:
        """Raises NaiadError."""
        replica = self.replicas.get(name)
        if replica is None:
            raise not_found(
                f"there is no replica '{name}'; the replicas are "
                f"{', '.join(sorted(self.replicas)) or 'none'}"
            )
        return replica

    def drain(self, name: str, *, is_draining: bool = True) -> Replica:
        """A draining replica finishes its requests, keeps its sequences and gets nothing new."""
        replica = self.find(name)
        if replica.is_draining != is_draining:
            replica.is_draining = is_draining
            self.changed()
            log.info(f"replica '{name}' {'drains' if is_draining else 'gets requests again'}")
        return replica

    def remove(self, name: str) -> Replica:
        """Its requests may still finish."""
        replica = self.find(name)
        del self.replicas[name]
        replica.is_draining = True
        self.leaving.add(replica)
        self.changed()
        log.info(f"replica '{name}' removed; {replica.num_in_flight} requests are in flight")
        self.check_leaving(replica)
        return replica

    def check_leaving(self, replica: Replica) -> None:
        """Lets a removed replica go when it has no requests any more."""
        if replica.num_in_flight == 0 and replica in self.leaving:
            self.leaving.discard(replica)
            if self._on_removed is not None:
                self._on_removed(replica)

    def follow(self, specs: tuple[ReplicaSpec, ...], source: str) -> None:
        """Makes the replicas of one source equal to `specs`. Replicas that are the same stay."""
        wanted = {spec.full_name: spec for spec in specs}
        for replica in [r for r in self.replicas.values() if r.source == source]:
            if wanted.get(replica.name) != replica.spec:
                self.remove(replica.name)
        for name, spec in wanted.items():
            current = self.replicas.get(name)
            if current is not None and current.source == source:
                continue
            try:
                self.add(spec, source)
            except NaiadError as error:
                log.error(f"replica '{name}' is not added: {error.message}")

    # Choice.

    def changed(self) -> None:
        self.generation += 1
        self._candidates.clear()
        self._valid_until_s = math.inf

    def candidates(
        self, model: str, version: str = "", *, is_grpc: bool = False, avoids_busy: bool = True
    ) -> list[Replica]:
        """The replicas of which one may get a request of the model now. An empty model means any
        replica. `avoids_busy` leaves out those that have just refused a request, if others are
        there."""
        if self._valid_until_s != math.inf and self._clock_s() >= self._valid_until_s:
            self.changed()
        key = (model, version, is_grpc, avoids_busy)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) > 4096:
                self._candidates.clear()
            found = self._candidates[key] = self._compute(*key)
        return found

    def _compute(self, model: str, version: str, is_grpc: bool, avoids_busy: bool) -> list[Replica]:
        now_s = self._clock_s()
        ready: list[Replica] = []
        busy: list[Replica] = []
        not_ready: list[Replica] = []
        ejected: list[Replica] = []
        for replica in self.replicas.values():
            if (
                replica.is_draining
                or replica.state in (ReplicaState.DOWN, ReplicaState.STARTING)
                or (model and not replica.serves(model, version))
                or (is_grpc and not replica.spec.grpc)
            ):
                continue
            breaker = replica.breaker_of(is_grpc=is_grpc)
            if not breaker.allows():
                if breaker.state is BreakerState.OPEN:
                    self._valid_until_s = min(self._valid_until_s, breaker.retry_s)
                continue
            record = replica.records.get(model)
            if record is not None and record.ejected_until_s > now_s:
                self._valid_until_s = min(self._valid_until_s, record.ejected_until_s)
                ejected.append(replica)
            elif replica.state is not ReplicaState.READY:
                not_ready.append(replica)
            elif avoids_busy and record is not None and record.refused_until_s > now_s:
                self._valid_until_s = min(self._valid_until_s, record.refused_until_s)
                busy.append(replica)
            else:
                ready.append(replica)
        return ready or busy or not_ready or ejected

    def knows(self, model: str) -> bool:
        """True if the model is in the repository of a replica, ready or not."""
        return any(
            model in replica.models or model in replica.unserved_models
            for replica in self.replicas.values()
        )

    def model_names(self) -> list[str]:
        """The models that a replica serves now."""
        return sorted({
            name
            for replica in self.replicas.values()
            if not replica.is_draining and replica.state is not ReplicaState.DOWN
            for name in replica.models
        })  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return bool(self.candidates(""))

    def retry_after_s(self) -> int:
        """How long a client should wait when nobody can serve its request."""
        waits = [
            breaker.retry_s - self._clock_s()
            for replica in self.replicas.values()
            for breaker in (replica.breaker, replica.grpc_breaker)
            if breaker.state is BreakerState.OPEN
        ]
        return max(1, math.ceil(min(waits, default=1.0)))

    # Outcomes.

    def on_sent(self, replica: Replica, *, is_grpc: bool = False) -> None:
        """The decision: a request goes to this replica."""
        replica.num_in_flight += 1
        breaker = replica.breaker_of(is_grpc=is_grpc)
        if breaker.state is BreakerState.HALF_OPEN:
            breaker.on_sent()
            self.changed()

    def on_response(
        self,
        replica: Replica,
        model: str,
        *,
        is_error: bool,
        duration_s: float,
        sent_s: float = math.inf,
        is_grpc: bool = False,
    ) -> None:
        is_past = replica.is_past(sent_s, is_grpc=is_grpc)
        self._reached(replica, is_grpc)
        if not is_past:
            self._judge(replica, model, is_error=is_error, duration_s=duration_s)

    def on_refusal(
        self, replica: Replica, model: str, retry_after_s: float, *, is_grpc: bool = False
    ) -> None:
        """The replica has responded that it has no room for the request."""
        self._reached(replica, is_grpc)
        replica.counters["refused"] += 1
        record = replica.record(model)
        num_ejections = record.num_ejections
        if self.detector.on_refusal(record, lambda: self._peers(model), retry_after_s):
            self.changed()
        if record.num_ejections != num_ejections:
            self._on_ejected(replica, model, record)

    def _reached(self, replica: Replica, is_grpc: bool) -> None:
        breaker = replica.breaker_of(is_grpc=is_grpc)
        if breaker.num_failures or breaker.state is not BreakerState.CLOSED:
            breaker.on_success()
            self.changed()

    def on_timeout(self, replica: Replica, model: str, duration_s: float) -> None:
        """A response has not come in its time, which says nothing about the connection."""
        self._judge(replica, model, is_error=True, duration_s=duration_s)

    def _judge(self, replica: Replica, model: str, *, is_error: bool, duration_s: float) -> None:
        record = replica.records.get(model)
        if record is None:
            record = replica.record(model)
        if is_error:
            replica.counters["server_errors"] += 1
        if self.detector.on_response(
            record, lambda: self._peers(model), is_error=is_error, duration_s=duration_s
        ):
            self._on_ejected(replica, model, record)

    def on_failure(
        self, replica: Replica, kind: str, *, sent_s: float = math.inf, is_grpc: bool = False
    ) -> None:
        """The replica could not be reached or died; `kind` is for the counter."""
        replica.counters[kind] += 1
        if replica.is_past(sent_s, is_grpc=is_grpc):
            return
        self.check_soon(replica)
        breaker = replica.breaker_of(is_grpc=is_grpc)
        was = breaker.state
        breaker.on_failure()
        if breaker.state is not was:
            port = "gRPC" if is_grpc else "HTTP"
            log.warning(
                f"replica '{replica.name}': the breaker of its {port} port is open after failures "
                f"({kind})"
            )
        self.changed()

    def check_soon(self, replica: Replica) -> None:
        """Something says that the state of the replica has changed."""
        if self.on_unreachable is not None:
            self.on_unreachable(replica)

    def on_ended(self, replica: Replica, *, is_grpc: bool = False) -> None:
        """A request has left the replica, however it ended."""
        replica.num_in_flight -= 1
        breaker = replica.breaker_of(is_grpc=is_grpc)
        if breaker.state is BreakerState.HALF_OPEN:
            breaker.on_cancelled()
            self.changed()
        if self.leaving:
            self.check_leaving(replica)

    def evaluate(self) -> None:
        """Compares durations; called at regular times."""
        names = {name for replica in self.replicas.values() for name in replica.records}
        for name in names:
            records = {
                replica.records[name]: replica
                for replica in self.replicas.values()
                if name in replica.records
            }
            for record in self.detector.evaluate(list(records)):
                self._on_ejected(records[record], name, record)

    def _peers(self, model: str) -> list[OutlierRecord]:
        return [
            replica.record(model)
            for replica in self.replicas.values()
            if model in replica.models and replica.state is not ReplicaState.DOWN
        ]

    def _on_ejected(self, replica: Replica, model: str, record: OutlierRecord) -> None:
        replica.counters["ejections"] += 1
        left_s = record.ejected_until_s - self._clock_s()
        log.warning(
            f"replica '{replica.name}' gets no requests of model '{model}' for {left_s:g} s: "
            f"{record.reason}"
        )
        self.changed()

    # Health.

    def set_state(self, replica: Replica, state: ReplicaState, reason: str) -> None:
        if replica.state is not state:
            message = f"replica '{replica.name}' is {state.value}"
            if state is ReplicaState.READY:
                log.info(message)
            else:
                log.warning(f"{message}: {reason}")
            if replica.state is ReplicaState.DOWN:
                replica.up_s = self._clock_s()
            replica.state = state
            replica.since_s = self._clock_s()
            self.changed()
        replica.reason = reason
        if state is ReplicaState.READY:
            self.set_reachable(replica, is_grpc=False)

    def set_reachable(self, replica: Replica, *, is_grpc: bool) -> None:
        """A health check has reached this port of the replica."""
        breaker = replica.breaker_of(is_grpc=is_grpc)
        if breaker.state is BreakerState.OPEN:
            breaker.on_healthy()
            self.changed()

    def set_models(
        self, replica: Replica, models: dict[str, frozenset[str]], unserved: dict[str, str]
    ) -> None:
        if replica.models != models or replica.unserved_models.keys() != unserved.keys():
            replica.models = models
            self.changed()
        replica.unserved_models = unserved

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())
