"""What the server knows about one model: the states of its versions, the copies that serve, and
what those were made from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from naiad.repository.load.lifecycle import State, VersionStatus
from naiad.repository.model import Model

if TYPE_CHECKING:
    from naiad.repository.model_source import ModelSource


class Origin(msgspec.Struct, frozen=True):
    """What a copy of a version was made from. Equal origins make equal copies."""

    files: str
    config: bytes
    """The config as it was read, without `instance_group` and `version_policy`."""
    instance_groups: bytes


class Entry:
    def __init__(
        self,
        key: str,
        name: str,
        namespace: str = "",
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called when other copies serve, or the same in another way."""
        self._on_change = on_change
        self.key = key
        self.name = name
        self.namespace = namespace
        self.statuses: dict[int, VersionStatus] = {}
        self.models: dict[int, Model] = {}
        self.latest: Model | None = None
        self.origins: dict[int, Origin] = {}
        """The origins of the versions in `models`."""
        self.source: ModelSource | None = None
        """What the last load read, if it could read the model."""
        self.is_wanted = False
        """The model should serve, so the server is ready only if it does."""
        self.is_explicit = False
        """A request has named the model; it was not only loaded as a part of an ensemble."""
        self.returns_with_parts = False
        """An ensemble that could not be built, or was unloaded, because of one of its parts. It is
        built when that part is loaded."""
        self.is_between_copies = False
        """The old copy was stopped to make room for the new one, so clients should try again."""
        self.failure = ""
        """Why the last load failed before it could start any version."""
        self.part_keys: set[str] = set()
        """The keys of the models that an ensemble's config named when it was last read."""

    def set_models(self, models: dict[int, Model]) -> None:
        self.models = models
        self.latest = models[max(models)] if models else None
        self.origins = {
            version: origin for version, origin in self.origins.items() if version in models
        }
        if self._on_change is not None:
            for model in models.values():
                model.on_change = self._on_change
            self._on_change()

    def status(self, version: int) -> VersionStatus:
        return self.statuses.setdefault(version, VersionStatus())

    def begin_loading(self, versions: Iterable[int]) -> None:
        """A version that serves stays READY while its new copy starts."""
        for version in versions:
            if self.status(version).state is not State.READY:
                self.status(version).become(State.LOADING)

    def abandon_loading(self, versions: Iterable[int], reason: str = "unloaded") -> None:
        for version in versions:
            if self.status(version).state is State.LOADING:
                self.status(version).become(State.UNAVAILABLE, reason)

    def forget_missing(self, versions: Collection[int]) -> None:
        """Only `versions` have a directory. One that failed and is gone is no version of the model
        any more; one that has served stays as unloaded, as in Triton."""
        for version, status in list(self.statuses.items()):
            is_failed = status.state is State.UNAVAILABLE and status.reason != "unloaded"
            if is_failed and version not in versions and version not in self.models:
                del self.statuses[version]

    def failure_text(self) -> str:
        """Why no version serves, in Triton's wording."""
        failed = {
            version: status
            for version, status in sorted(self.statuses.items())
            if status.state is State.UNAVAILABLE
        }
        reasons = "".join(
            f"version {version} is at UNAVAILABLE state: {status.reason};"
            for version, status in failed.items()
        )
        return reasons or self.failure

    def shown_status(self, version: int) -> tuple[str, str]:
        """(state, reason) as the index shows them: a loaded version whose workers all crash in a
        loop is shown as unavailable."""
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
