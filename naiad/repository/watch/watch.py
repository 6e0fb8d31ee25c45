"""Decides, in poll mode, which models have changed since they were last loaded and have stopped
changing.

In:  the fingerprints of all models, once per poll. Out: the models to load and to remove. Pure: it
     uses neither the disk nor a clock.
Rules: a change counts when two polls in a row see the same state, so that a model is not loaded
       while it is being copied, nor removed while it is being replaced. A load that has failed is
       tried again even without a change, less and less often.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from naiad.repository.watch.fingerprint import Fingerprint

Fingerprints = Mapping[str, Fingerprint]
"""A model's key -> its fingerprint."""
MAX_POLLS_BETWEEN_RETRIES = 32


class Changes(msgspec.Struct, frozen=True):
    load: list[str]
    remove: list[str]


class _Failure(msgspec.Struct):
    num_polls_to_wait: int
    num_polls_waited: int = 0


class Watch:
    def __init__(self) -> None:
        self._seen: dict[str, Fingerprint] = {}
        self._loaded: dict[str, Fingerprint] = {}
        """The fingerprint of each model when it was last loaded, successfully or not."""
        self._failures: dict[str, _Failure] = {}
        self.is_changing = False
        """The last poll saw a change, so the next one should follow soon."""

    def start(self, fingerprints: Fingerprints, failed: Collection[str]) -> None:
        """All these models have been loaded, except those that `failed`."""
        self._seen, self._loaded = dict(fingerprints), dict(fingerprints)
        self._failures = {key: _Failure(1) for key in failed}

    def changes(self, fingerprints: Fingerprints, busy: Collection[str] = ()) -> Changes:
        """Models in `busy` are being loaded now, so their changes have to wait."""
        load = [key for key in fingerprints if key not in busy and self._is_due(key, fingerprints)]
        remove = [
            key
            for key in self._loaded
            if key not in fingerprints and key not in self._seen and key not in busy
        ]
        self.is_changing = dict(fingerprints) != self._seen
        self._seen = dict(fingerprints)
        for key in load:
            self._loaded[key] = fingerprints[key]
        for key in remove:
            del self._loaded[key]
            self._failures.pop(key, None)
        return Changes(load, remove)

    def _is_due(self, key: str, fingerprints: Fingerprints) -> bool:
        if self._seen.get(key) != fingerprints[key]:
            return False
        if self._loaded.get(key) != fingerprints[key]:
            return True
        failure = self._failures.get(key)
        if failure is None or self.is_changing:  # The extra poll after a change does not count.
            return False
        failure.num_polls_waited += 1
        return failure.num_polls_waited >= failure.num_polls_to_wait

    def report(self, key: str, *, is_failed: bool) -> None:
        """Records how the load of a model ended."""
        if not is_failed:
            self._failures.pop(key, None)
            return
        failure = self._failures.setdefault(key, _Failure(0))
        failure.num_polls_waited = 0
        failure.num_polls_to_wait = min(
            failure.num_polls_to_wait * 2 or 1, MAX_POLLS_BETWEEN_RETRIES
        )
