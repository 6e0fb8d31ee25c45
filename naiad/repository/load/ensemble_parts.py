"""The parts of an ensemble: which models its steps mean, and whether these serve.

In:  the config of an ensemble, and the namespace it belongs to. Out: entries, keys and models.
Rule: with namespacing, a name means the model of the ensemble's own namespace first, loaded or not.
      Which models the steps mean is decided when the ensemble is built; it is built again when that
      changes.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.job import Job
from naiad.core.response import ResponseStream
from naiad.errors import NaiadError, invalid_arg
from naiad.repository.entry import Entry
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources
from naiad.repository.namespace import Entries, model_key
from naiad.repository.store import Store

Infer = Callable[[Job], ResponseStream]

LATEST_VERSION = -1
"""The `model_version` of a step that takes the latest. A step that leaves it out asks for version
0, as in Triton."""


class EnsembleParts:
    def __init__(self, entries: Entries, sources: ModelSources) -> None:
        self._entries = entries
        self._sources = sources

    def find(self, name: str, namespace: str) -> Entry | None:
        if self._sources.is_namespacing:
            own = self._entries.by_key.get(model_key(namespace, name))
            if (own is not None and own.models) or self._own_place(name, namespace) is not None:
                return own
        try:
            return self._entries.find(name)
        except NaiadError:  # The name is ambiguous; `models` reports it.
            return None

    def _own_place(self, name: str, namespace: str) -> Store | None:
        places = self._sources.places(name)
        return next((store for store in places if store.location == namespace), None)

    def places(self, name: str, namespace: str) -> list[Store]:
        """The repositories that may hold the part."""
        own = self._own_place(name, namespace) if self._sources.is_namespacing else None
        return self._sources.places(name) if own is None else [own]

    def keys(self, source: ModelSource) -> set[str]:
        return {self._key(name, source.namespace) for name in source.parts}

    def are_others_meant(self, ensemble: Entry) -> bool:
        """The steps of a built ensemble mean other models than when it was built."""
        source = ensemble.source
        if not self._sources.is_namespacing or source is None or not ensemble.part_keys:
            return False
        return self.keys(source) != ensemble.part_keys

    def _key(self, name: str, namespace: str) -> str:
        entry = self.find(name, namespace)
        if entry is not None:
            return entry.key
        places = self.places(name, namespace)
        return self._sources.key(name, places[0]) if len(places) == 1 else name

    def models(self, source: ModelSource) -> dict[str, Model]:
        """The model that each step calls, by name. Raises NaiadError if one does not serve."""
        namespace = source.namespace
        missing = [
            name
            for name in source.parts
            if self.find(name, namespace) is None and len(self.places(name, namespace)) != 1
        ]
        if missing:
            raise invalid_arg(
                f"ensemble {source.name} contains models that are not available or ambiguous: "
                f"{', '.join(missing)}"
            )
        return {
            step.model_name: self._model(
                source.name, step.model_name, step.model_version, namespace
            )
            for step in source.config.ensemble_scheduling.step
        }

    def _model(self, ensemble: str, name: str, version: int, namespace: str) -> Model:
        entry = self.find(name, namespace)
        if entry is None or entry.latest is None:
            reason = entry.failure_text() if entry is not None else ""
            detail = f" Model '{name}' loading failed with error: {reason}" if reason else ""
            raise invalid_arg(
                f"ensemble '{ensemble}' depends on '{name}' which has no loaded version.{detail}"
            )
        if version != LATEST_VERSION and version not in entry.models:
            raise invalid_arg(
                f"ensemble '{ensemble}' depends on '{name}' whose required version {version} "
                "is not loaded."
            )
        return entry.latest if version == LATEST_VERSION else entry.models[version]

    def infer_in(self, source: ModelSource, infer: Infer) -> Infer:
        """The function that sends the steps' requests to the models of the right namespace."""
        if not self._sources.is_namespacing or source.store is None:
            return infer
        keys = {name: self._key(name, source.namespace) for name in source.parts}

        def infer_part(job: Job) -> ResponseStream:
            job.request.model_name = keys[job.request.model_name]
            return infer(job)

        return infer_part
