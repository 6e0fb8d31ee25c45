"""What is known about one model: its versions, their states, the copies that serve, and what they
were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from naiad.repository.load.lifecycle import State, VersionStatus
from naiad.repository.model import Model

if TYPE_CHECKING:
    from naiad.repository.model_source import ModelSource


class Origin(msgspec.Struct, frozen=True):
    """What a loaded version was made from. Equal origins make equal copies."""

    files: str
    config: bytes
    """As it was read, without `instance_group` and `version_policy`."""
    instance_groups: bytes


class Entry:
    def __init__(self, key: str, name: str, namespace: str = "") -> None:
        self.key = key
        self.name = name
        self.namespace = namespace
        self.statuses: dict[int, VersionStatus] = {}
        self.models: dict[int, Model] = {}
        self.latest: Model | None = None
        self.origins: dict[int, Origin] = {}
        """Of the versions in `models`."""
        self.source: ModelSource | None = None
        """What was read for the last load that got that far."""
        self.is_wanted = False
        """Should serve: the server's readiness depends on it."""
        self.is_explicit = False
        """Asked for by its own name, not only as a part of an ensemble."""
        self.returns_with_parts = False
        """An ensemble that could not be, or had to go, because of a part: it is loaded when the
        part is."""
        self.is_between_copies = False
        """The old one had to go before the new one comes: it is worth asking again."""
        self.failure = ""
        """Why the last load failed before any version could be tried."""
        self.part_keys: set[str] = set()
        """Of an ensemble: the models that its config named when it was last read."""

    def set_models(self, models: dict[int, Model]) -> None:
        self.models = models
        self.latest = models[max(models)] if models else None
        self.origins = {
            version: origin for version, origin in self.origins.items() if version in models
        }

    def status(self, version: int) -> VersionStatus:
        return self.statuses.setdefault(version, VersionStatus())

    def failure_text(self) -> str:
        """Why there is nothing that serves, in Triton's words."""
        failed = {
            version: status
            for version, status in sorted(self.statuses.items())
            if status.state is State.UNAVAILABLE
        }
        words = "".join(
            f"version {version} is at UNAVAILABLE state: {status.reason};"
            for version, status in failed.items()
        )
        return words or self.failure

    def shown_status(self, version: int) -> tuple[str, str]:
        """(state, reason) as the index shows them: a loaded version whose workers all crash in a
        loop is not available."""
        status, model = self.statuses[version], self.models.get(version)
        if status.state is State.READY and model is not None and model.breakdown:
            return State.UNAVAILABLE.value, model.breakdown
        return status.state.value, status.reason

    @property
    def is_ready(self) -> bool:
        return (
            self.latest is not None
            and all(
                status.state in (State.READY, State.UNAVAILABLE)
                for status in self.statuses.values()
            )
            and all(
                self.statuses[version].state is State.READY and model.is_healthy
                for version, model in self.models.items()
            )
        )
