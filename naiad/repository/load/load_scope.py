"""What a request to load or unload is about: the models on disk, what they are made of, and who is
made of them.

In:  a name. Out: nodes to load, parts first, and the keys of every model that the request touches.
Rule: looks only. `nodes` and `parts_of` read the disk, so they are called in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from naiad import log
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.repository.entry import Entry
from naiad.repository.model import Model
from naiad.repository.model_source import (
    DUPLICATE,
    ModelSource,
    ModelSources,
    NoVersionError,
    Override,
)
from naiad.repository.namespace import Entries
from naiad.repository.store import Store

Infer = Callable[[InferRequest], ResponseStream]


class Node(msgspec.Struct, eq=False):
    key: str
    name: str
    namespace: str
    source: ModelSource | None
    error: NaiadError | None
    """Why there is no source."""
    depth: int
    """0 for a model that needs no other to be loaded first."""
    is_asked: bool
    """The request names it; else it is a part of one that the request names."""


class Survey:
    def __init__(self, entries: Entries, sources: ModelSources) -> None:
        self._entries = entries
        self._sources = sources

    # What is to be loaded.

    def parts_of(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Of each of these models, those of its parts that it may wait for: parts that lead back to
        it are left out."""
        parts = {name: self._read_parts(name) for name in names}
        return {
            name: {part for part in parts[name] if not _leads_to(part, name, parts)}
            for name in parts
        }

    def nodes(self, name: str, override: Override, should_load_parts: bool) -> list[Node]:
        """With the parts of ensembles that do not serve yet, unless these are loaded for
        themselves."""
        found: dict[str, Node] = {}
        places: list[Store | None] = list(self._sources.places(name))
        if override.folder is not None and not places:
            places = [None]
        if not places:
            missing = internal(f"failed to load '{name}', no version is available")
            return [Node(name, name, "", None, _unreadable(name, missing), 0, True)]
        if len(places) > 1 and not self._sources.is_namespacing:
            return [Node(name, name, "", None, _unreadable(name, invalid_arg(DUPLICATE)), 0, True)]
        for store in places:
            self._visit(name, store, override, should_load_parts, [], found)
        return list(found.values())

    def _visit(
        self,
        name: str,
        store: Store | None,
        override: Override,
        should_load_parts: bool,
        path: list[str],
        found: dict[str, Node],
    ) -> Node:
        key, namespace = self._sources.key(name, store), store.location if store is not None else ""
        node = found.get(key)
        if node is not None:
            return node
        node = found[key] = Node(key, name, namespace, None, None, 0, not path)
        try:
            node.source = self._sources.read(name, store, override)
        except NoVersionError as error:
            node.error = invalid_arg(f"load failed for model '{name}': {error.message}\n")
        except NaiadError as error:
            node.error = _unreadable(name, error)
        if node.source is not None and node.source.parts:
            self._visit_parts(node, should_load_parts, [*path, key], found)
        return node

    def _visit_parts(
        self, node: Node, should_load_parts: bool, path: list[str], found: dict[str, Node]
    ) -> None:
        assert node.source is not None
        last = self._end_of_circle(node.source)
        if last:
            node.source, node.error = None, invalid_arg(
                f"load failed for model '{node.name}': circular dependency between ensembles: {node.name} -> ... -> {last} -> {node.name}\n"
            )  # fmt: skip
            return
        for name in node.source.parts if should_load_parts else ():
            entry = self._part(name, node.namespace)
            places = self._part_places(name, node.namespace)
            if (entry is not None and entry.models) or not places:
                continue
            if len(places) > 1:
                node.source, node.error = (
                    None,
                    _unreadable(node.name, invalid_arg(f"'{name}': {DUPLICATE}")),
                )
                return
            part = self._visit(name, places[0], Override(), True, path, found)
            node.depth = max(node.depth, part.depth + 1)

    def _end_of_circle(self, source: ModelSource) -> str:
        """The ensemble that, somewhere below this one, calls it again; empty when none does."""
        seen: set[str] = set()
        waiting = [(source.name, part) for part in source.parts]
        while waiting:
            user, name = waiting.pop()
            if name == source.name:
                return user
            if name not in seen:
                seen.add(name)
                waiting += [(name, part) for part in self._read_parts(name)]
        return ""

    def _read_parts(self, name: str) -> set[str]:
        parts: set[str] = set()
        for store in self._sources.places(name):
            try:
                parts |= set(self._sources.read_parts(name, store))
            except NaiadError:
                continue
        return parts

    # Keys.

    def _part(self, name: str, namespace: str) -> Entry | None:
        try:
            return self._entries.part(name, namespace)
        except NaiadError:  # ambiguous: `parts` says so
            return None

    def _part_places(self, name: str, namespace: str) -> list[Store]:
        places = self._sources.places(name)
        own = [store for store in places if store.location == namespace]
        return own if own and self._sources.is_namespacing else places

    def part_keys(self, source: ModelSource) -> set[str]:
        namespace = source.store.location if source.store is not None else ""
        keys: set[str] = set()
        for name in source.parts:
            entry, places = self._part(name, namespace), self._part_places(name, namespace)
            keys.add(
                entry.key
                if entry is not None
                else self._sources.key(name, places[0])
                if len(places) == 1
                else name
            )
        return keys

    def related(self, nodes: list[Node]) -> set[str]:
        keys = {node.key for node in nodes}
        for node in nodes:
            if node.source is not None:
                keys |= self.part_keys(node.source)
        return self.with_users(keys)

    def unload_keys(self, name: str, unload_dependents: bool) -> set[str]:
        keys = {entry.key for entry in self._entries.named(name)} or {name}
        waiting = list(keys) if unload_dependents else []
        while waiting:
            entry = self._entries.by_key.get(waiting.pop())
            new = entry.part_keys - keys if entry is not None else set()
            keys |= new
            waiting += new
        return self.with_users(keys)

    def with_users(self, keys: set[str]) -> set[str]:
        """And the ensembles that are made of them, and those that are made of these."""
        keys = set(keys)
        while True:
            users = {
                entry.key
                for entry in self._entries
                if entry.key not in keys and not entry.part_keys.isdisjoint(keys)
            }
            if not users:
                return keys
            keys |= users

    # The parts of an ensemble that serve.

    def parts(self, source: ModelSource) -> dict[str, Model]:
        """Raises NaiadError when one does not."""
        namespace = source.store.location if source.store is not None else ""
        missing = [
            name for name in source.parts if self._part(name, namespace) is None and len(self._part_places(name, namespace)) != 1
        ]  # fmt: skip
        if missing:
            raise invalid_arg(
                f"ensemble {source.name} contains models that are not available or ambiguous: {', '.join(missing)}"
            )
        found: dict[str, Model] = {}
        for step in source.config.ensemble_scheduling.step:
            found[step.model_name] = self._part_model(
                source.name, step.model_name, step.model_version, namespace
            )
        return found

    def _part_model(self, ensemble: str, name: str, version: int, namespace: str) -> Model:
        entry = self._part(name, namespace)
        if entry is None or entry.latest is None:
            reason = entry.failure_text() if entry is not None else ""
            words = f" Model '{name}' loading failed with error: {reason}" if reason else ""
            raise invalid_arg(
                f"ensemble '{ensemble}' depends on '{name}' which has no loaded version.{words}"
            )
        if version > 0 and version not in entry.models:
            raise invalid_arg(
                f"ensemble '{ensemble}' depends on '{name}' whose required version {version} is not loaded."
            )
        return entry.models[version] if version > 0 else entry.latest

    def infer_in(self, source: ModelSource, infer: Infer) -> Infer:
        """For the steps of an ensemble: a name means the model of its own namespace first."""
        if not self._sources.is_namespacing or source.store is None:
            return infer
        namespace = source.store.location

        def infer_part(request: InferRequest) -> ResponseStream:
            entry = self._entries.part(request.model_name, namespace)
            if entry is not None:
                request.model_name = entry.key
            return infer(request)

        return infer_part


def _leads_to(start: str, target: str, parts: dict[str, set[str]]) -> bool:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name == target:
            return True
        if name not in seen:
            seen.add(name)
            waiting += parts.get(name, set())
    return False


def _unreadable(name: str, error: NaiadError) -> NaiadError:
    """What a client is told; the log has the reason."""
    log.error(f"Poll failed for model directory '{name}': {error.message}")
    told = internal(f"failed to load '{name}', failed to poll from model repository")
    told.__cause__ = error
    return told
