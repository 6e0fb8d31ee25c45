"""Model directories, version directories, version policies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.pb.model_config_pb2 import ModelVersionPolicy
from naiad.repository.scan import missing_versions, scan_model, scan_repository, select_versions


def make(path: Path, *names: str) -> None:
    for name in names:
        (path / name).mkdir(parents=True)


def test_models_are_the_directories_sorted(tmp_path: Path) -> None:
    make(tmp_path, "b/1", "a/1", "a/10", "a/2", ".git/1", "..data/1")
    (tmp_path / "notes.txt").touch()
    found = scan_repository(tmp_path)
    assert [model.name for model in found] == ["a", "b"]
    assert list(found[0].versions) == [1, 2, 10]
    assert found[0].versions[10] == tmp_path / "a" / "10"
    assert found[0].warnings == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("01", "which contains leading zeros in its directory name"),
        ("v1", "which fails to convert to integral number"),
        ("1x", "which fails to convert to integral number"),
        ("-1", "which fails to convert to integral number"),
        ("2.5", "which fails to convert to integral number"),
        ("٣", "which fails to convert to integral number"),
        ("99999999999999999999", "which is larger than any version can be"),
        ("9223372036854775808", "which is larger than any version can be"),
    ],
)
def test_directories_that_are_not_versions_are_ignored_with_a_warning(
    tmp_path: Path, name: str, reason: str
) -> None:
    make(tmp_path, f"m/{name}", "m/3", "m/0")
    found = scan_model(tmp_path / "m")
    assert list(found.versions) == [0, 3]
    (warning,) = found.warnings
    assert warning.message == f"ignore version directory '{name}' {reason}"
    assert warning.file == f"m/{name}"


def test_known_directories_and_files_are_not_versions(tmp_path: Path) -> None:
    make(tmp_path, "m/warmup", "m/initial_state", "m/configs", "m/.cache", "m/1")
    (tmp_path / "m" / "2").touch()
    found = scan_model(tmp_path / "m")
    assert (list(found.versions), found.warnings) == ([1], [])


def test_links_are_followed_and_loops_ignored(tmp_path: Path) -> None:
    make(tmp_path, "store/7", "repo/m")
    (tmp_path / "repo" / "m" / "1").symlink_to(tmp_path / "store" / "7")
    (tmp_path / "repo" / "m" / "2").symlink_to(tmp_path / "repo" / "m" / "2")
    (tmp_path / "repo" / "m" / "3").symlink_to("/nowhere")
    (tmp_path / "repo" / "linked").symlink_to(tmp_path / "repo" / "m")
    (tmp_path / "repo" / "loop").symlink_to(tmp_path / "repo" / "loop")
    assert [(model.name, list(model.versions)) for model in scan_repository(tmp_path / "repo")] == [
        ("linked", [1]),
        ("m", [1]),
    ]


def test_a_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        NaiadError, match=r"failed to open directory .*: No such file or directory"
    ) as raised:
        scan_repository(tmp_path / "nowhere")
    assert raised.value.code is Code.INTERNAL


def test_an_unreadable_model_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a/1", "b/1")
    real = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    a, b = scan_repository(tmp_path)
    assert list(b.versions) == [1]
    assert a.versions == {}
    assert a.warnings[0].message == "failed to open directory a: Permission denied"


def policy(**choice: object) -> ModelVersionPolicy:
    return ModelVersionPolicy(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (policy(), [9]),
        (policy(latest=ModelVersionPolicy.Latest(num_versions=1)), [9]),
        (policy(latest=ModelVersionPolicy.Latest(num_versions=2)), [3, 9]),
        (policy(latest=ModelVersionPolicy.Latest(num_versions=99)), [1, 3, 9]),
        (policy(latest=ModelVersionPolicy.Latest(num_versions=0)), []),
        (policy(all=ModelVersionPolicy.All()), [1, 3, 9]),
        (policy(specific=ModelVersionPolicy.Specific(versions=[9, 1, 4, 1])), [1, 9]),
        (policy(specific=ModelVersionPolicy.Specific()), []),
    ],
)
def test_versions_that_a_policy_serves(chosen: ModelVersionPolicy, expected: list[int]) -> None:
    assert select_versions([9, 1, 3], chosen) == expected


def test_versions_that_a_policy_names_but_do_not_exist() -> None:
    assert missing_versions(
        [1, 2], policy(specific=ModelVersionPolicy.Specific(versions=[2, 4, 3]))
    ) == [3, 4]
    assert missing_versions([], policy(all=ModelVersionPolicy.All())) == []
