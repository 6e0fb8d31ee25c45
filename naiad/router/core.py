"""The decisions of the router: which replica gets a request, and what happens when that fails.

In:  a Relay, the request that is being passed on. Out: a Replica, or the error for the client.
Rule: a decision is counted at the moment it is made (Fleet.on_sent), and every decision ends with
      exactly one `ended`.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from naiad import log
from naiad.errors import NaiadError, unavailable
from naiad.keys.account import Admission
from naiad.keys.guard import unknown_model
from naiad.router.config import ModelSpec, RouterConfig
from naiad.router.fleet import Fleet
from naiad.router.policies.least_load import LeastLoad
from naiad.router.policy import MakePolicy, ObservingPolicy, Policy, build_policy, check_policy
from naiad.router.replica import Replica, ReplicaState
from naiad.router.retry_budget import RetryBudget
from naiad.router.sequences import Sequences
from naiad.router.token_usage import estimate_tensor_tokens, is_language

if TYPE_CHECKING:
    from naiad.router.relay import Relay

_MAX_ROUTINGS = 4096


class ModelRouting:
    """How requests of one model are routed."""

    __slots__ = (
        "choose",
        "is_idempotent",
        "observer",
        "policy_name",
        "prepare",
        "response_timeout_s",
    )

    def __init__(self, policy_name: str, policy: Policy, spec: ModelSpec) -> None:
        self.policy_name = policy_name
        self.choose = policy.choose
        self.is_idempotent = spec.idempotent
        self.response_timeout_s = spec.response_timeout_s
        self.prepare: Callable[[Relay, Callable[[], bool]], bool] | None = getattr(
            policy, "prepare", None
        )
        """Reads a request before the policy is asked, if that takes long."""
        self.observer: ObservingPolicy | None = (
            cast(ObservingPolicy, policy) if hasattr(policy, "on_sent") else None
        )


class RouterCore:
    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        policies: dict[str, MakePolicy] | None = None,
    ) -> None:
        """`policies` are policies that need parts of the router. Raises NaiadError for a policy
        that cannot be made."""
        self.fleet = fleet
        self.sequences = Sequences()
        self.counters: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """By model that sleeps: requests that wait for its first replica."""
        self.is_stopping = False
        self._policies = policies or {}
        self._least_load = LeastLoad()
        self._reported: set[str] = set()
        """Models whose policy failed, of which the log has warned."""
        self.configure(config)

    def configure(self, config: RouterConfig) -> None:
        """Raises NaiadError, and changes nothing then."""
        check_policy(config.policy, ModelSpec(), self._policies)
        for pattern, spec in config.model.items():
            try:
                check_policy(spec.policy or config.policy, spec, self._policies)
            except NaiadError as error:
                raise NaiadError(error.code, f"model '{pattern}': {error.message}") from None
        self.config = config
        self.fleet.config = config
        self.fleet.detector.options = config.outlier
        self.retries = RetryBudget(config.retry.budget, config.retry.burst)
        self._routings: dict[str, ModelRouting] = {}
        self._reported.clear()

    def routing(self, model: str) -> ModelRouting:
        routing = self._routings.get(model)
        if routing is None:
            spec = self.config.model_spec(model)
            if not self.fleet.knows(model):  # nothing is kept for names that clients invent
                return ModelRouting("least_load", self._least_load, spec)
            if len(self._routings) >= _MAX_ROUTINGS:
                self._routings.clear()
            name = spec.policy or self.config.policy
            routing = ModelRouting(name, build_policy(name, model, spec, self._policies), spec)
            self._routings[model] = routing
        return routing

    @property
    def is_ready(self) -> bool:
        return self.fleet.is_ready and not self.is_stopping

    # Decisions.

    def choose(self, relay: Relay) -> Replica | None:
        """Chooses a replica and counts the request there. None if nobody can serve it. Raises
        NaiadError for a sequence that must be started again."""
        candidates: Sequence[Replica] = self._candidates(relay)
        replica: Replica | None
        if relay.sequence is not None:
            replica = self.sequences.place(
                relay.model, relay.sequence, candidates, self.keeps_sequences
            )
        else:
            if relay.tried:
                untried = [replica for replica in candidates if replica not in relay.tried]
                candidates = untried or candidates
            if len(candidates) > 1:
                replica = self._ask_policy(relay, candidates)
            else:
                replica = candidates[0] if candidates else None
        if replica is not None:
            self.fleet.on_sent(replica, is_grpc=relay.is_grpc)
            observer = relay.routing.observer
            if observer is not None:
                self._tell(relay, observer.on_sent, relay, replica)
        return replica

    def _candidates(self, relay: Relay) -> Sequence[Replica]:
        # The place of a sequence must not depend on what one router has seen refused.
        return self.fleet.candidates(
            relay.model,
            relay.version,
            is_grpc=relay.is_grpc,
            avoids_busy=relay.sequence is None,
        )

    def has_untried(self, relay: Relay) -> bool:
        return any(replica not in relay.tried for replica in self._candidates(relay))

    def _ask_policy(self, relay: Relay, candidates: Sequence[Replica]) -> Replica:
        try:
            replica = relay.routing.choose(relay, candidates)
            if replica in candidates:
                return replica
            problem = f"it returned {replica!r}, which is not one of the replicas"
        except Exception:
            problem = traceback.format_exc()
        self._report(relay, f"failed, least_load decides instead: {problem}")
        return self._least_load.choose(None, candidates)

    def _tell(self, relay: Relay, hook: Callable[..., None], *arguments: object) -> None:
        """Tells a policy what became of its choice. A hook that fails harms no request."""
        try:
            hook(*arguments)
        except Exception:
            self._report(relay, f"failed when it was told of a request: {traceback.format_exc()}")

    def _report(self, relay: Relay, problem: str) -> None:
        self.counters["policy_failures"] += 1
        if relay.model not in self._reported:
            self._reported.add(relay.model)
            log.error(f"policy '{relay.routing.policy_name}' of model '{relay.model}' {problem}")

    def keeps_sequences(self, replica: Replica) -> bool:
        return replica.state is not ReplicaState.DOWN and (
            replica.name in self.fleet.replicas or replica in self.fleet.leaving
        )

    def ended(self, relay: Relay, replica: Replica) -> None:
        self.fleet.on_ended(replica, is_grpc=relay.is_grpc)
        observer = relay.routing.observer
        if observer is not None:
            self._tell(relay, observer.on_ended, relay, replica)

    def responded(
        self, relay: Relay, replica: Replica, *, is_error: bool, is_refusal: bool
    ) -> None:
        """The response has begun. A refusal has been told to the fleet before."""
        wait_s = time.monotonic() - relay.sent_s
        if not is_refusal:
            self.fleet.on_response(
                replica,
                relay.model,
                is_error=is_error,
                duration_s=wait_s,
                sent_s=relay.sent_s,
                is_grpc=relay.is_grpc,
            )
        observer = relay.routing.observer
        if observer is not None:
            self._tell(relay, observer.on_first_byte, relay, replica, wait_s)

    def no_response(self, relay: Relay, replica: Replica) -> None:
        """The time for the response is over."""
        wait_s = time.monotonic() - relay.sent_s
        self.fleet.on_timeout(replica, relay.model, wait_s)

    def reserve_tokens(self, admission: Admission | None, model: str, num_bytes: int) -> None:
        """For a request of Triton's protocol to a language model. Raises NaiadError if the key has
        too few tokens left."""
        if admission is not None and admission.needs_tokens and is_language(model, self.fleet):
            admission.reserve(estimate_tensor_tokens(num_bytes))

    def begin_wait(self, model: str) -> bool:
        """Counts a request that waits for a model that sleeps. False if it must not wait."""
        config = self.config
        if model not in config.asleep or self.waiting.total() >= config.max_waiting:
            return False
        self.waiting[model] += 1
        return True

    def end_wait(self, model: str) -> None:
        self.waiting[model] -= 1
        if not self.waiting[model]:
            del self.waiting[model]

    def nobody(self, model: str, version: str, reason: str = "") -> NaiadError:
        """The error when no replica can serve the request."""
        fleet = self.fleet
        if model and not fleet.knows(model) and model not in self.config.asleep:
            # While replicas start, nobody knows which models there are.
            is_settled = any(
                replica.state in (ReplicaState.READY, ReplicaState.NOT_READY) for replica in fleet
            )
            if is_settled:
                return unknown_model(model)
        self.counters["no_replica"] += 1
        what = f"model '{model}'" if model else "the request"
        if version:
            what += f" version {version}"
        message = f"no replica can serve {what} now"
        return unavailable(f"{message}: {reason}" if reason else message, fleet.retry_after_s())
