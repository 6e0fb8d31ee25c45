"""What an instance is made from: what it has in common with the others of its model, and its place
in the rate limiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from naiad.instances.restart import RestartPolicy
from naiad.instances.warmup import WarmupSample


class InstancePlan(msgspec.Struct, frozen=True):
    """What every instance of a model version has in common."""

    backend: str
    model_name: str
    model_version: str
    is_decoupled: bool
    execution_timeout_ns: int
    """0 means none: a long `execute` is busy, not dead."""
    restarts: RestartPolicy
    warmup: list[WarmupSample] = []


class Permit(Protocol):
    """What an instance needs of the rate limiter (naiad.scheduling.rate_limiter.Permit)."""

    offer: Callable[[], None]

    def may_run(self) -> bool: ...

    def take(self) -> None: ...

    def give_back(self, num_running: int) -> None: ...

    def close(self) -> None: ...
