"""A change that leaves size, time and inode as they were is seen, if the file was young at the last
look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.repository.watch import recent_change
from naiad.repository.watch.fingerprint import Fingerprint, fingerprint
from naiad.repository.watch.recent_change import TICK_NS, YoungFiles

WRITTEN_NS = 10**18
"""The tick of a coarse clock in which all is written here."""


class Model:
    """One file, looked at by a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "1" / "model.py"
        self.path.parent.mkdir()
        self.now_ns = WRITTEN_NS
        self._young = YoungFiles(lambda: self.now_ns)
        self.write("one")

    def write(self, text: str) -> None:
        """In place, within the tick."""
        self.path.write_text(text)
        os.utime(self.path, ns=(WRITTEN_NS, WRITTEN_NS))

    def look(self, *, later_ns: int = 0) -> Fingerprint:
        self.now_ns += later_ns
        return fingerprint(self.folder, self._young)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_a_change_within_the_tick(model: Model) -> None:
    seen = model.look()
    model.write("two")
    changed = model.look()
    assert changed != seen
    assert model.look() == changed


@pytest.mark.parametrize("later_ns", [1, TICK_NS])
def test_it_is_seen_however_late_the_next_look_is(model: Model, later_ns: int) -> None:
    seen = model.look()
    model.write("two")
    changed = model.look(later_ns=later_ns)
    assert changed != seen
    assert [model.look(later_ns=TICK_NS) for _ in range(2)] == [changed] * 2


def test_coming_of_age_is_no_change(model: Model) -> None:
    seen = model.look()
    assert [model.look(later_ns=TICK_NS // 2) for _ in range(4)] == [seen] * 4
    assert not model._young._known, "nothing is remembered any longer"


def test_each_change_is_another(model: Model) -> None:
    seen = [model.look()]
    for text in ("two", "six", "one"):
        model.write(text)
        seen.append(model.look())
    assert len({tuple(one.versions.items()) for one in seen}) == 4


def test_an_old_file_is_not_opened(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.now_ns += TICK_NS
    monkeypatch.setattr(recent_change, "_digest", lambda path: pytest.fail("opened"))
    assert model.look() == model.look()


def test_a_large_file_is_not_opened(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_change, "MAX_BYTES", 2)
    monkeypatch.setattr(recent_change, "_digest", lambda path: pytest.fail("opened"))
    assert model.look() == model.look()


def test_what_is_no_file_is_not_opened(model: Model) -> None:
    """Reading a FIFO would wait for ever."""
    os.mkfifo(model.folder / "1" / "fifo")
    os.utime(model.folder / "1" / "fifo", ns=(WRITTEN_NS, WRITTEN_NS))
    assert model.look() == model.look()


def test_one_that_cannot_be_read_any_more(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = model.look()

    def refuse(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        assert model.look() != seen
