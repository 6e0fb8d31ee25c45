"""A change that leaves size, time and inode as they were is detected if the file was recent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.repository.watch import recent_change
from naiad.repository.watch.fingerprint import Fingerprint, fingerprint
from naiad.repository.watch.recent_change import TICK_NS, RecentChanges

WRITTEN_NS = 10**18
"""All writes happen within this tick of a coarse clock."""


class Model:
    """One file, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "1" / "model.py"
        self.path.parent.mkdir()
        self.now_ns = WRITTEN_NS
        self._recent = RecentChanges(lambda: self.now_ns)
        self.write("one")

    def write(self, text: str) -> None:
        """Writes in place, within the tick."""
        self.path.write_text(text)
        os.utime(self.path, ns=(WRITTEN_NS, WRITTEN_NS))

    def read(self, *, later_ns: int = 0) -> Fingerprint:
        self.now_ns += later_ns
        return fingerprint(self.folder, self._recent)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_a_change_within_the_tick_is_detected(model: Model) -> None:
    seen = model.read()
    model.write("two")
    changed = model.read()
    assert changed != seen
    assert model.read() == changed


@pytest.mark.parametrize("later_ns", [1, TICK_NS])
def test_the_change_is_detected_no_matter_how_late(model: Model, later_ns: int) -> None:
    seen = model.read()
    model.write("two")
    changed = model.read(later_ns=later_ns)
    assert changed != seen
    assert [model.read(later_ns=TICK_NS) for _ in range(2)] == [changed] * 2


def test_a_file_that_is_no_longer_recent_has_not_changed(model: Model) -> None:
    seen = model.read()
    assert [model.read(later_ns=TICK_NS // 2) for _ in range(4)] == [seen] * 4
    assert not model._recent._known, "a file that is no longer recent is forgotten"


def test_each_change_gives_another_fingerprint(model: Model) -> None:
    seen = [model.read()]
    for text in ("two", "six", "one"):
        model.write(text)
        seen.append(model.read())
    assert len({tuple(one.versions.items()) for one in seen}) == 4


def test_an_old_file_is_not_opened(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.now_ns += TICK_NS
    monkeypatch.setattr(recent_change, "_digest", lambda path: pytest.fail("opened"))
    assert model.read() == model.read()


def test_a_large_file_is_not_opened(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_change, "MAX_BYTES", 2)
    monkeypatch.setattr(recent_change, "_digest", lambda path: pytest.fail("opened"))
    assert model.read() == model.read()


def test_a_fifo_is_not_opened(model: Model) -> None:
    """Reading a FIFO would block forever."""
    os.mkfifo(model.folder / "1" / "fifo")
    os.utime(model.folder / "1" / "fifo", ns=(WRITTEN_NS, WRITTEN_NS))
    assert model.read() == model.read()


def test_a_file_that_becomes_unreadable_has_changed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = model.read()

    def refuse(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        assert model.read() != seen
