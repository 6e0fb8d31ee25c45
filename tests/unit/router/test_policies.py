from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Sequence

import pytest

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.router.config import ModelSpec
from naiad.router.policies.least_load import LeastLoad
from naiad.router.policies.round_robin import RoundRobin
from naiad.router.policies.session import Session
from naiad.router.policy import RoutedRequest, build_policy
from naiad.router.replica import Replica
from tests.unit.router.fleet_of import fleet_of


class Asked:
    """A request with headers and nothing else."""

    model, version, path = "m", "", "/v2/models/m/infer"
    body: Buffer = b""

    def __init__(self, **headers: str) -> None:
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def header(self, name: str) -> str:
        return self._headers.get(name, "")


def test_least_load_counts_its_own_decisions_at_once() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    policy = LeastLoad()
    for _ in range(40):  # a burst, before any of them has been sent
        fleet.on_sent(policy.choose(Asked(), fleet.candidates("m")))
    assert {replica.num_in_flight for replica in fleet} == {10}


def test_least_load_uses_idle_replicas_in_turn() -> None:
    fleet = fleet_of("a", "b", "c")
    policy = LeastLoad()
    chosen = Counter(policy.choose(Asked(), fleet.candidates("m")).name for _ in range(30))
    assert set(chosen.values()) == {10}


def test_least_load_avoids_the_busy_replica() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.find("a").num_in_flight = 3
    fleet.find("b").num_in_flight = 1
    fleet.find("c").num_in_flight = 2
    policy = LeastLoad()
    assert {policy.choose(Asked(), fleet.candidates("m")).name for _ in range(6)} == {"b"}


def test_round_robin_ignores_the_load() -> None:
    fleet = fleet_of("a", "b")
    fleet.find("a").num_in_flight = 100
    policy = RoundRobin()
    names = [policy.choose(Asked(), fleet.candidates("m")).name for _ in range(4)]
    assert names == ["a", "b", "a", "b"]


def places(*names: str) -> dict[str, str]:
    fleet, policy = fleet_of(*names), Session()
    return {
        f"s{number}": policy.choose(Asked(x_session_id=f"s{number}"), fleet.candidates("m")).name
        for number in range(1000)
    }


def test_a_session_stays_and_sessions_are_spread() -> None:
    first = places("a", "b", "c", "d")
    assert first == places("a", "b", "c", "d")  # another router decides the same
    assert first == places("d", "c", "b", "a")  # whatever order it knows the replicas in
    assert min(Counter(first.values()).values()) > 150


def test_only_the_sessions_of_a_lost_replica_move() -> None:
    before, after = places("a", "b", "c", "d"), places("a", "b", "c")
    moved = {session for session in before if before[session] != after[session]}
    assert moved == {session for session, name in before.items() if name == "d"}


def test_requests_without_a_session_are_placed_by_load() -> None:
    fleet = fleet_of("a", "b")
    fleet.find("a").num_in_flight = 1
    assert Session().choose(Asked(), fleet.candidates("m")).name == "b"


class LastByName:
    def __init__(self, bias: int = 0) -> None:
        self.bias = bias

    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
        return max(replicas, key=lambda replica: replica.name)


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("own_policies")
    module.LastByName = LastByName  # type: ignore[attr-defined]
    module.Empty = type("Empty", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_policies", module)
    return module


def test_makes_a_policy_of_the_users_own(own_module: types.ModuleType) -> None:
    spec = ModelSpec(options={"bias": 3})
    policy = build_policy("own_policies:LastByName", "m", spec, {})
    assert isinstance(policy, LastByName)
    assert policy.bias == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fastest", {}, "unknown policy 'fastest', expected least_load, round_robin, session"),
        ("own_policies:Missing", {}, "cannot be imported: module 'own_policies' has no attribute"),
        ("no_such_module:Class", {}, "cannot be imported: No module named 'no_such_module'"),
        ("own_policies:LastByName", {"tilt": 1}, "cannot be made for model 'm': TypeError"),
        ("own_policies:Empty", {}, "has no method choose"),
    ],
)
def test_explains_a_policy_that_cannot_be_made(
    own_module: types.ModuleType, name: str, options: dict[str, str | int], message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        build_policy(name, "m", ModelSpec(options={**options}), {})
    assert message in caught.value.message
