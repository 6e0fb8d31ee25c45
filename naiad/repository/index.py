"""The repository index, and the table that the server prints when it has started.

In:  entries, and the models in the repositories. Out: one row for each version, as in Triton. A
     model that was never loaded has one row with its name; a model whose directory was deleted is
     shown while it serves.
"""

from __future__ import annotations

from collections.abc import Iterator

from naiad.core.model_spec import ModelIndex
from naiad.repository.entry import Entry
from naiad.repository.load.lifecycle import State
from naiad.repository.model_source import DUPLICATE, ModelSources
from naiad.repository.namespace import Entries, model_key

Row = tuple[str, str, str]


def build_index(entries: Entries, sources: ModelSources, *, ready_only: bool) -> list[ModelIndex]:
    rows: list[ModelIndex] = []
    for name, entry, is_duplicate in _models(entries, sources):
        if is_duplicate:
            # Triton shows this row even if only ready models are requested.
            rows.append(ModelIndex(name, "", State.UNAVAILABLE.value, DUPLICATE))
        elif entry is None or not entry.statuses:
            rows += [] if ready_only else [ModelIndex(name)]
        else:
            rows += _versions(entry, ready_only)
    return rows


def _models(entries: Entries, sources: ModelSources) -> Iterator[tuple[str, Entry | None, bool]]:
    """(name, entry, whether several repositories have the model), sorted by name; with namespacing,
    sorted by repository first."""
    places = sources.names()
    shown: set[str] = set()
    for store in sources.stores if sources.is_namespacing else ():
        for name in sorted(name for name, stores in places.items() if store in stores):
            key = model_key(store.location, name)
            shown.add(key)
            yield name, entries.by_key.get(key), False
    unshown = {
        entry.key: entry.name for entry in entries if entry.models and entry.key not in shown
    }
    rest = unshown if sources.is_namespacing else {name: name for name in places} | unshown
    for key, name in sorted(rest.items()):
        yield (
            name,
            entries.by_key.get(key),
            len(places.get(name, ())) > 1 and not sources.is_namespacing,
        )


def _versions(entry: Entry, ready_only: bool) -> Iterator[ModelIndex]:
    for version in sorted(entry.statuses):
        state, reason = entry.shown_status(version)
        if state == State.READY.value or not ready_only:
            yield ModelIndex(entry.name, str(version), state, reason)


def status_rows(entries: Entries) -> list[Row]:
    """(model, version, status) for the table."""
    rows: list[Row] = []
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.namespace)):
        if not entry.statuses:
            reason = _first_line(entry.failure) or "No model version was found"
            rows.append((entry.name, "-", f"Not loaded: {reason}"))
        for version, status in sorted(entry.statuses.items()):
            reason = _first_line(status.reason)
            shown = f"{status.state}: {reason}" if reason else status.state.value
            rows.append((entry.name, str(version), shown))
    return rows


def _first_line(reason: str) -> str:
    """The log has the rest."""
    return reason.partition("\n")[0]
