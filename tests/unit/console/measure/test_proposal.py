"""The configuration that an analysis proposes: a copy that it may change, and a diff."""

from __future__ import annotations

from pathlib import Path

from naiad.console.measure.proposal import copy_repository, propose

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


def test_a_proposal_is_a_diff_until_the_file_has_the_text(tmp_path: Path) -> None:
    model = repository(tmp_path)
    copy_repository(model.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "m"
    assert propose(model, copy).diff == ""
    (copy / "config.pbtxt").write_text(NEW)
    proposal = propose(model, copy)
    assert proposal.file == "m/config.pbtxt"
    assert "+instance_group [ { count: 2 } ]" in proposal.diff.splitlines()
    assert not proposal.is_applied
    (model / "config.pbtxt").write_text(NEW)
    applied = propose(model, copy)
    assert applied.is_applied
    assert applied.diff == ""
    assert applied.tag != proposal.tag
