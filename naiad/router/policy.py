"""What a routing policy is, and how one is made from its name.

A policy of the user's own is a class `module:Class`. It is called with the fields of `options` as
keyword arguments, once per model, and needs one method:

    class FewestModels:
        def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
            return min(replicas, key=lambda replica: (len(replica.models), replica.num_in_flight))

In:  a request, and the replicas that may get it: at least two, all of which serve its model.
Out: one of these replicas.
Rule: `choose` runs on the event loop for every request, so it must not block. A policy that raises
      or returns something else is reported once and replaced by least_load for that request.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.router.config import ModelSpec
from naiad.router.policies.least_load import LeastLoad
from naiad.router.policies.round_robin import RoundRobin
from naiad.router.policies.session import Session
from naiad.router.replica import Replica


class RoutedRequest(Protocol):
    """What a policy may read of a request."""

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> str:
        """Empty where the client leaves the version to the server."""
        ...

    @property
    def path(self) -> str:
        """The path of the HTTP request, or of the RPC."""
        ...

    @property
    def body(self) -> Buffer:
        """The body of the HTTP request, or the message of the RPC, not decoded."""
        ...

    def header(self, name: str) -> str:
        """The value of a header by its lower-case name; empty if there is none."""
        ...


class Policy(Protocol):
    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica: ...


class ObservingPolicy(Policy, Protocol):
    """A policy that also learns what became of its choices."""

    def on_sent(self, request: RoutedRequest, replica: Replica) -> None:
        """The request goes to the replica, whoever chose it."""

    def on_first_byte(self, request: RoutedRequest, replica: Replica, wait_s: float) -> None:
        """The response has begun, `wait_s` after the request was sent."""

    def on_ended(self, request: RoutedRequest, replica: Replica) -> None:
        """The request has left the replica, however it ended."""


MakePolicy = Callable[[str, ModelSpec], Policy]
"""(model, spec) -> a policy for this model."""

OWN: dict[str, MakePolicy] = {
    "least_load": lambda model, spec: LeastLoad(),
    "round_robin": lambda model, spec: RoundRobin(),
    "session": lambda model, spec: Session(),
}


def build_policy(name: str, model: str, spec: ModelSpec, more: dict[str, MakePolicy]) -> Policy:
    """`more` are policies that need parts of the router. Raises NaiadError."""
    make = OWN.get(name) or more.get(name)
    if make is not None:
        return make(model, spec)
    module_name, colon, class_name = name.partition(":")
    if not colon or not class_name:
        known = ", ".join(sorted({*OWN, *more}))
        raise invalid_arg(f"unknown policy '{name}', expected {known} or module:Class")
    try:
        module = importlib.import_module(module_name)
        kind = getattr(module, class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise invalid_arg(f"policy '{name}' cannot be imported: {error}") from None
    except Exception as error:
        raise invalid_arg(
            f"policy '{name}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        policy: Policy = kind(**spec.options)
    except NaiadError:
        raise
    except Exception as error:
        raise invalid_arg(
            f"policy '{name}' cannot be made for model '{model}': {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(policy, "choose", None)):
        raise invalid_arg(f"policy '{name}' has no method choose(request, replicas)")
    return policy


def check_policy(name: str, spec: ModelSpec, more: dict[str, MakePolicy]) -> None:
    """Finds out whether the policy can be made. Raises NaiadError."""
    build_policy(name, "", spec, more)
