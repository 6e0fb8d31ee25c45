"""What an instance is made from: what it shares with the other instances of its model, and its
permit from the rate limiter."""

from __future__ import annotations

from typing import Protocol

import msgspec

from naiad.instances.restart import RestartPolicy
from naiad.instances.warmup import WarmupSample


class InstancePlan(msgspec.Struct, frozen=True):
    """What every instance of a model version shares."""

    backend: str
    model_name: str
    model_version: str
    is_decoupled: bool
    execution_timeout_ns: int
    """0 means no limit: a long `execute` is busy, not dead."""
    restarts: RestartPolicy
    warmup: list[WarmupSample] = []
    load_timeout_s: float = 0.0
    """For the start of a worker, `initialize` and the warm-up together. 0 means no limit."""
    keeps_encoded: bool = False
    """Responses for frontend processes are passed on as they come from the worker."""


class PermitHolder(Protocol):
    def on_permit(self) -> None:
        """The instance may ask `may_run` again."""
        ...


class Permit(Protocol):
    """What an instance needs from the rate limiter (naiad.scheduling.rate_limiter.Permit)."""

    def attach(self, holder: PermitHolder) -> None: ...

    def may_run(self) -> bool: ...

    def acquire(self) -> None:
        """A batch begins."""
        ...

    def release(self) -> None:
        """A batch has ended."""
        ...

    def close(self) -> None: ...
