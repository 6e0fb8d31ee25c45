"""Keys for tests: a table with keys of every kind, and their texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from naiad.keys import key_change
from naiad.keys.guard import Guard
from naiad.keys.key import KeyDocument
from naiad.keys.key_change import NewKey
from naiad.keys.key_table import KeyTable


class FakeTime:
    """A clock of the wall that a test advances."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self._stepped = timedelta()

    def __call__(self) -> float:
        return self.now.timestamp()

    def advance(self, **period: float) -> None:
        self.now += timedelta(**period)

    def step(self, **period: float) -> None:
        """Somebody sets the clock."""
        self.now += timedelta(**period)
        self._stepped += timedelta(**period)

    def steady_s(self) -> float:
        """The clock that nobody can set."""
        return (self.now - self._stepped).timestamp()


class KeyRing:
    """Creates and changes keys as `naiad key` does, without a file."""

    def __init__(self, time: FakeTime | None = None, static_keys: tuple[str, ...] = ()) -> None:
        self.time = time or FakeTime()
        self.document = KeyDocument()
        self.table = KeyTable(static_keys, clock_s=self.time)

    def guard(self, **options: Any) -> Guard:
        return Guard(self.table, clock_s=self.time, steady_s=self.time.steady_s, **options)

    def create(self, name: str, **fields: Any) -> str:
        """Returns the text of the key."""
        issued = key_change.create(self.document, NewKey(name=name, **fields), self.time.now)
        self._replace(issued.document)
        return issued.token

    def revoke(self, text: str) -> None:
        key = key_change.find(self.document, text)
        self._replace(key_change.revoke(self.document, key, self.time.now))

    def rotate(self, text: str, **grace: float) -> str:
        key = key_change.find(self.document, text)
        issued = key_change.rotate(self.document, key, self.time.now, timedelta(**grace))
        self._replace(issued.document)
        return issued.token

    def _replace(self, document: KeyDocument) -> None:
        self.document = document
        self.table.replace(document)
