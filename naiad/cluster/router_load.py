"""What the router's metrics page says about the load: text -> numbers per replica and per model."""

from __future__ import annotations

import http.client
import math
from collections.abc import Mapping, Sequence

import msgspec

IN_FLIGHT = "naiad_router_replica_in_flight"
WAITING = "naiad_router_waiting_requests"
EJECTED = "naiad_router_model_ejected"


class RouterLoad(msgspec.Struct, frozen=True):
    in_flight: dict[str, float] = {}
    """By name of a replica."""
    waiting: dict[str, float] = {}
    """By model: requests that wait for a deployment that sleeps."""
    is_known: bool = False
    ejected: dict[str, float] = {}
    """By name of a replica: for how many of its models it gets no requests, as an outlier."""


def add_loads(loads: Sequence[RouterLoad]) -> RouterLoad:
    """The load that several routers make together. It is known if each of them is."""
    in_flight: dict[str, float] = {}
    waiting: dict[str, float] = {}
    ejected: dict[str, float] = {}
    for load in loads:
        for sums, values in ((in_flight, load.in_flight), (waiting, load.waiting)):
            for key, value in values.items():
                sums[key] = sums.get(key, 0.0) + value
        for key, value in load.ejected.items():
            ejected[key] = max(ejected.get(key, 0.0), value)
    return RouterLoad(
        in_flight, waiting, bool(loads) and all(each.is_known for each in loads), ejected
    )


def read_router_load(address: str, port: int) -> RouterLoad:
    """Returns a load that is not known if the router does not answer."""
    connection = http.client.HTTPConnection(address, port, timeout=1.0)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        if response.status != 200:
            return RouterLoad()
        return parse_router_load(response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return RouterLoad()
    finally:
        connection.close()


def parse_router_load(page: str) -> RouterLoad:
    in_flight: dict[str, float] = {}
    waiting: dict[str, float] = {}
    ejected: dict[str, float] = {}
    rows = (
        (IN_FLIGHT, "replica", in_flight),
        (WAITING, "model", waiting),
        (EJECTED, "replica", ejected),
    )
    for line in page.splitlines():
        for name, label, sums in rows:
            if line.startswith(f"{name}{{"):
                key = line.partition(f'{label}="')[2].partition('"')[0]
                sums[key] = sums.get(key, 0.0) + float(line.rpartition(" ")[2])
    return RouterLoad(in_flight, waiting, True, ejected)


def quantile(buckets: Mapping[str, float], share: float) -> float:
    """The value below which `share` of a Prometheus histogram lies: its bucket's upper bound; 0 if
    it is empty."""
    rows = sorted((math.inf if bound == "+Inf" else float(bound), count)
                  for bound, count in buckets.items())  # fmt: skip
    total = rows[-1][1] if rows else 0.0
    if total <= 0:
        return 0.0
    finite = 0.0
    for bound, count in rows:
        if math.isfinite(bound):
            finite = bound
        if count >= share * total:
            break
    return finite
