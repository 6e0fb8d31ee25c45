"""The configuration that an analysis proposes: a diff, and a file that is replaced with care."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.console.measure.proposal import copy_repository, propose, tag_of, write_config
from naiad.errors import NaiadError

OLD = 'backend: "python"\n'
NEW = 'backend: "python"\ninstance_group [ { count: 2 } ]\n'


def repository(folder: Path) -> Path:
    model = folder / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("code")
    (model / "config.pbtxt").write_text(OLD)
    (folder / "models" / ".git").mkdir()
    return model


def test_an_analysis_works_on_a_copy_whose_large_files_are_links(tmp_path: Path) -> None:
    model = repository(tmp_path)
    copy_repository(model.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "m"
    assert (copy / "1" / "model.py").read_text() == "code"
    assert (copy / "1").is_symlink()
    (copy / "config.pbtxt").write_text(NEW)
    assert (model / "config.pbtxt").read_text() == OLD
    assert not (tmp_path / "copy" / ".git").exists()


def test_a_proposal_is_a_diff_that_can_be_applied_once(tmp_path: Path) -> None:
    model = repository(tmp_path)
    copy_repository(model.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "m"
    assert propose(model, copy).diff == ""
    (copy / "config.pbtxt").write_text(NEW)
    proposal = propose(model, copy)
    assert proposal.file == "m/config.pbtxt"
    assert "+instance_group [ { count: 2 } ]" in proposal.diff.splitlines()
    assert write_config(model, NEW, proposal.tag) == OLD
    assert propose(model, copy).is_applied
    assert (model / "config.pbtxt").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in model.iterdir()) == ["1", "config.pbtxt"]


def test_a_file_that_has_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    model = repository(tmp_path)
    tag = tag_of(model)
    (model / "config.pbtxt").write_text("# somebody else was here\n")
    with pytest.raises(NaiadError, match="has changed since the diff was made"):
        write_config(model, NEW, tag)
    assert (model / "config.pbtxt").read_text() == "# somebody else was here\n"
