"""What is known about one model name: its versions, their states, and the copies that serve."""

from __future__ import annotations

import asyncio

from naiad.repository.fingerprint import Fingerprint
from naiad.repository.lifecycle import State, VersionStatus
from naiad.repository.model import Model


class Entry:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        """Operations on one model happen one after the other."""
        self.statuses: dict[int, VersionStatus] = {}
        self.models: dict[int, Model] = {}
        self.latest: Model | None = None
        self.is_wanted = False
        """Should serve: the server's readiness depends on it."""
        self.failure = ""
        """Why the last load failed before any version could be tried."""
        self.fingerprint: Fingerprint | None = None
        """Of the files that were loaded; None after a load with overrides."""

    def set_models(self, models: dict[int, Model]) -> None:
        self.models = models
        self.latest = models[max(models)] if models else None

    def status(self, version: int) -> VersionStatus:
        return self.statuses.setdefault(version, VersionStatus())

    @property
    def is_ready(self) -> bool:
        return (
            self.latest is not None
            and all(status.state in (State.READY, State.UNAVAILABLE) for status in self.statuses.values())
            and all(self.statuses[version].state is State.READY and model.is_healthy for version, model in self.models.items())
        )

    @property
    def parts(self) -> set[str]:
        """Of an ensemble: the models that it calls."""
        return self.latest.parts if self.latest is not None else set()
