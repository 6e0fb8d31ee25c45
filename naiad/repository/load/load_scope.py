"""What a load or unload request affects: the models to load, and every model related to them.

In:  the name of a model. Out: a LoadScope. Parts come before the ensembles that are made of them.
Rule: nothing is changed here. `read_nodes` and `waiting_for` read the disk, so they run in a
      thread; keys are read from the entries, so they are computed in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.repository.config.override_check import OverrideRefusedError
from naiad.repository.load.ensemble_parts import EnsembleParts
from naiad.repository.model_source import (
    DUPLICATE,
    ModelSource,
    ModelSources,
    NoVersionError,
    Override,
    poll_failure,
)
from naiad.repository.namespace import Entries, name_of
from naiad.repository.store import Store


class Node(msgspec.Struct, eq=False):
    """One model of a load request."""

    key: str
    name: str
    namespace: str
    source: ModelSource | None = None
    error: NaiadError | None = None
    """The reason why there is no source."""
    depth: int = 0
    """0 for a model that needs no other model of the request."""
    is_requested: bool = False
    """True if the request names the model; False for the parts of an ensemble that it names."""
    is_forced: bool = False
    """True if the model is loaded again although nothing of its own has changed."""


class LoadScope(msgspec.Struct, frozen=True):
    keys: frozenset[str]
    """The keys of all models that the request may change or depends on."""
    nodes: tuple[Node, ...] = ()
    """The models to load; empty for an unload request."""

    def layers(self) -> list[list[Node]]:
        """Models that can be loaded at the same time. Parts are in an earlier layer than their
        ensembles."""
        depths = sorted({node.depth for node in self.nodes})
        return [[node for node in self.nodes if node.depth == depth] for depth in depths]


class LoadScopes:
    def __init__(self, entries: Entries, sources: ModelSources, parts: EnsembleParts) -> None:
        self._entries = entries
        self._sources = sources
        self._parts = parts

    async def of_load(self, name: str, override: Override, *, should_load_parts: bool) -> LoadScope:
        """Includes the parts of an ensemble that do not serve yet, if `should_load_parts`."""
        nodes = await asyncio.to_thread(self.read_nodes, name, override, should_load_parts)
        keys = {node.key for node in nodes}
        for node in nodes:
            if node.source is not None:
                keys |= self._parts.keys(node.source)
        return LoadScope(self._with_ensembles(keys), tuple(nodes))

    async def of_unload(self, name: str, *, unload_dependents: bool) -> LoadScope:
        keys = {entry.key for entry in self._entries.named(name)} or {name}
        unvisited = list(keys) if unload_dependents else []
        while unvisited:
            entry = self._entries.by_key.get(unvisited.pop())
            new = entry.part_keys - keys if entry is not None else set()
            keys |= new
            unvisited += new
        return LoadScope(self._with_ensembles(keys))

    async def of_removal(self, key: str) -> LoadScope:
        return LoadScope(self._with_ensembles({key}))

    def _with_ensembles(self, keys: set[str]) -> frozenset[str]:
        """Adds the ensembles that are made of these models, directly or through other ensembles,
        and those whose steps may mean them."""
        keys = set(keys)
        while True:
            names = {name_of(key) for key in keys}
            ensembles = {
                entry.key
                for entry in self._entries
                if entry.key not in keys
                and not names.isdisjoint(name_of(key) for key in entry.part_keys)
            }
            if not ensembles:
                return frozenset(keys)
            keys |= ensembles

    # Many models at once.

    def waiting_for(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Each of these models -> the parts that it has to wait for. A part that leads back to the
        model is left out, because waiting for it would never end."""
        parts = {name: self._read_parts(name) for name in names}
        return {
            name: {part for part in parts[name] if not _leads_to(part, name, parts)}
            for name in parts
        }

    def _read_parts(self, name: str) -> set[str]:
        parts: set[str] = set()
        for store in self._sources.places(name):
            try:
                parts |= set(self._sources.read_parts(name, store))
            except NaiadError:
                continue
        return parts

    # One model and its parts.

    def read_nodes(self, name: str, override: Override, should_load_parts: bool) -> list[Node]:
        places: list[Store | None] = list(self._sources.places(name))
        if override.folder is not None and not places:
            places = [None]
        if not places:
            missing = internal(f"failed to load '{name}', no version is available")
            return [Node(name, name, "", error=poll_failure(name, missing), is_requested=True)]
        if len(places) > 1 and not self._sources.is_namespacing:
            duplicate = poll_failure(name, invalid_arg(DUPLICATE))
            return [Node(name, name, "", error=duplicate, is_requested=True)]
        nodes: dict[str, Node] = {}
        for store in places:
            node = self._read_node(name, store, override, should_load_parts, nodes)
            node.is_requested = True
        return list(nodes.values())

    def _read_node(
        self,
        name: str,
        store: Store | None,
        override: Override,
        should_load_parts: bool,
        nodes: dict[str, Node],
    ) -> Node:
        """Adds the model and its parts to `nodes`."""
        key = self._sources.key(name, store)
        node = nodes.get(key)
        if node is not None:
            return node
        node = nodes[key] = Node(key, name, store.location if store is not None else "")
        try:
            node.source = self._sources.read(name, store, override)
        except NoVersionError as error:
            log.error(f"failed to load '{name}': {error.message}")
            node.error = invalid_arg(f"load failed for model '{name}': {error.message}\n")
        except OverrideRefusedError as error:
            log.error(f"failed to load '{name}': {error.message}")
            node.error = error
        except NaiadError as error:
            node.error = poll_failure(name, error)
        if node.source is not None and node.source.parts:
            self._read_part_nodes(node, node.source, should_load_parts, nodes)
        return node

    def _read_part_nodes(
        self, node: Node, source: ModelSource, should_load_parts: bool, nodes: dict[str, Node]
    ) -> None:
        last = self._last_of_circle(source)
        if last:
            circle = (
                "circular dependency between ensembles: "
                f"{node.name} -> ... -> {last} -> {node.name}"
            )
            log.error(f"failed to load '{node.name}': {circle}")
            node.source = None
            node.error = invalid_arg(f"load failed for model '{node.name}': {circle}\n")
            return
        for name in source.parts if should_load_parts else ():
            entry = self._parts.find(name, node.namespace)
            places = self._parts.places(name, node.namespace)
            if (entry is not None and entry.models) or not places:
                continue
            if len(places) > 1:
                node.source = None
                node.error = poll_failure(node.name, invalid_arg(f"'{name}': {DUPLICATE}"))
                return
            part = self._read_node(name, places[0], Override(), True, nodes)
            node.depth = max(node.depth, part.depth + 1)

    def _last_of_circle(self, source: ModelSource) -> str:
        """The ensemble that, somewhere below this one, calls it again; empty if there is none."""
        seen: set[str] = set()
        unvisited = [(source.name, part) for part in source.parts]
        while unvisited:
            user, name = unvisited.pop()
            if name == source.name:
                return user
            if name not in seen:
                seen.add(name)
                unvisited += [(name, part) for part in self._read_parts(name)]
        return ""


def _leads_to(start: str, target: str, parts: dict[str, set[str]]) -> bool:
    seen: set[str] = set()
    unvisited = [start]
    while unvisited:
        name = unvisited.pop()
        if name == target:
            return True
        if name not in seen:
            seen.add(name)
            unvisited += parts.get(name, set())
    return False
