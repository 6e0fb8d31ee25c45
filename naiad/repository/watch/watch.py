"""Which models on disk have changed since they were last dealt with, and have stopped changing.
Poll mode's judgement.

In:  one look at the repositories after the other. Out: what is to be loaded and what is to go.
     Pure: no disk, no clock.
Rules: only what looks the same twice in a row is acted on, so a model that is being copied is left
       alone until it is complete, and one that is being replaced is not missed. A load that failed
       is tried again without a change too, ever less often.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from naiad.repository.watch.fingerprint import Fingerprint

Look = Mapping[str, Fingerprint]
"""A model's key -> its files."""
MAX_LOOKS_BETWEEN_RETRIES = 32


class Changes(msgspec.Struct, frozen=True):
    load: list[str]
    gone: list[str]


class _Failure(msgspec.Struct):
    num_looks_to_wait: int
    num_looks_waited: int = 0


class Watch:
    def __init__(self) -> None:
        self._seen: dict[str, Fingerprint] = {}
        self._done: dict[str, Fingerprint] = {}
        """What each model looked like when it was last loaded, or at least tried."""
        self._failures: dict[str, _Failure] = {}
        self.is_unsettled = False
        """Something was changing in the last look: the next one should come soon."""

    def start(self, look: Look, failed: Collection[str]) -> None:
        """Everything in this look has been loaded or tried."""
        self._seen, self._done = dict(look), dict(look)
        self._failures = {key: _Failure(1) for key in failed}

    def changes(self, look: Look, busy: Collection[str] = ()) -> Changes:
        """`busy` ones are being loaded now: they have to wait."""
        load = [key for key in look if key not in busy and self._is_due(key, look)]
        gone = [
            key
            for key in self._done
            if key not in look and key not in self._seen and key not in busy
        ]
        self.is_unsettled = dict(look) != self._seen
        self._seen = dict(look)
        for key in load:
            self._done[key] = look[key]
        for key in gone:
            del self._done[key]
            self._failures.pop(key, None)
        return Changes(load, gone)

    def _is_due(self, key: str, look: Look) -> bool:
        if self._seen.get(key) != look[key]:
            return False
        if self._done.get(key) != look[key]:
            return True
        failure = self._failures.get(key)
        if failure is None or self.is_unsettled:  # an extra look does not count
            return False
        failure.num_looks_waited += 1
        return failure.num_looks_waited >= failure.num_looks_to_wait

    def report(self, key: str, *, is_failed: bool) -> None:
        """How the load went."""
        if not is_failed:
            self._failures.pop(key, None)
            return
        failure = self._failures.setdefault(key, _Failure(0))
        failure.num_looks_waited = 0
        failure.num_looks_to_wait = min(
            failure.num_looks_to_wait * 2 or 1, MAX_LOOKS_BETWEEN_RETRIES
        )
