"""Fleets for tests: replicas with given models, on a clock that the test advances."""

from __future__ import annotations

from naiad.router.config import ReplicaSpec, RouterConfig
from naiad.router.fleet import Fleet
from naiad.router.replica import Replica, ReplicaState


class Seconds:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def fleet_of(
    *names: str,
    clock_s: Seconds | None = None,
    config: RouterConfig | None = None,
    models: tuple[str, ...] = ("m",),
    has_grpc: bool = False,
) -> Fleet:
    fleet = Fleet(config or RouterConfig(), clock_s=clock_s or Seconds())
    for number, name in enumerate(names):
        add(fleet, name, number, models, has_grpc=has_grpc)
    return fleet


def add(
    fleet: Fleet,
    name: str,
    number: int,
    models: tuple[str, ...] = ("m",),
    *,
    has_grpc: bool = False,
) -> Replica:
    host = f"10.0.0.{number + 1}"
    grpc = f"{host}:8001" if has_grpc else ""
    replica = fleet.add(ReplicaSpec(f"http://{host}:8000", grpc=grpc, name=name), "flag")
    fleet.set_models(replica, {model: frozenset(("1",)) for model in models}, {})
    fleet.set_state(replica, ReplicaState.READY, "")
    return replica


def names_of(replicas: list[Replica]) -> list[str]:
    return sorted(replica.name for replica in replicas)
