"""One server behind the router: what is known about it, and how much of ours it works on.

In:  results of health checks (naiad.router.health) and outcomes of requests. Out: attributes that
     policies read.
Rule: `num_in_flight` grows at the moment of the decision, not when the request is sent, so that the
      next decision of the same turn sees it.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad.router.breaker import Breaker, BreakerOptions
from naiad.router.config import ReplicaSpec
from naiad.router.outlier import OutlierRecord

if TYPE_CHECKING:
    from naiad.router.grpc_pool import GrpcPool
    from naiad.router.http_pool import HttpPool


class ReplicaState(enum.Enum):
    STARTING = "starting"
    """No health check has ended yet."""
    READY = "ready"
    NOT_READY = "not ready"
    """It lives, and says that it is not ready. It gets requests only if no other can."""
    DOWN = "down"


class Replica:
    __slots__ = (
        "breaker",
        "counters",
        "grpc_breaker",
        "grpc_pool",
        "http_pool",
        "is_draining",
        "models",
        "name",
        "num_in_flight",
        "openai_models",
        "reason",
        "records",
        "since_s",
        "source",
        "spec",
        "state",
        "unserved_models",
        "up_s",
    )

    http_pool: HttpPool
    grpc_pool: GrpcPool | None

    def __init__(
        self,
        spec: ReplicaSpec,
        breaker: BreakerOptions,
        clock_s: Callable[[], float],
        source: str = "flag",
    ) -> None:
        self.spec = spec
        self.name = spec.full_name
        self.source = source
        """Who added it: flag, file or api."""
        self.state = ReplicaState.STARTING
        self.reason = "no health check has ended yet"
        """Why the state is what it is."""
        self.since_s = clock_s()
        """The time of the last change of the state."""
        self.is_draining = False
        self.num_in_flight = 0
        """Requests of this router that the replica has not responded to."""
        self.models: dict[str, frozenset[str]] = {}
        """The versions of each model that are ready; no versions where the server has none."""
        self.unserved_models: dict[str, str] = {}
        """Models that are in its repository and not ready, and why."""
        self.openai_models: frozenset[str] = frozenset()
        """Models that its OpenAI routes serve."""
        self.breaker = Breaker(breaker, clock_s)
        """That of the HTTP port. A port may fail alone, by a rule of a firewall for example."""
        self.grpc_breaker = Breaker(breaker, clock_s)
        self.up_s = -math.inf
        """When it has come back after it was down."""
        self.records: dict[str, OutlierRecord] = {}
        """Records of responses, for each model."""
        self.counters: Counter[str] = Counter()
        self.grpc_pool = None

    def record(self, model: str) -> OutlierRecord:
        record = self.records.get(model)
        if record is None:
            record = self.records[model] = OutlierRecord()
        return record

    def breaker_of(self, *, is_grpc: bool) -> Breaker:
        return self.grpc_breaker if is_grpc else self.breaker

    def is_past(self, sent_s: float, *, is_grpc: bool) -> bool:
        """True if what became of a request that was sent then says nothing about the replica: there
        was an outage meanwhile, which has been noticed and is over."""
        return sent_s < max(self.up_s, self.breaker_of(is_grpc=is_grpc).closed_s)

    def serves(self, model: str, version: str) -> bool:
        versions = self.models.get(model)
        return versions is not None and (not version or not versions or version in versions)

    def __repr__(self) -> str:
        return f"<Replica {self.name} {self.state.value}>"
