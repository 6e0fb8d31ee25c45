"""`naiad key`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from naiad.cli.main import naiad, run


class Output:
    """What a command has printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out.strip(), err


RunKey: TypeAlias = Callable[..., Output]


@pytest.fixture
def key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunKey:
    def call(*arguments: str) -> Output:
        path = str(tmp_path / "keys.json")
        code = run(naiad, "naiad", ["key", *arguments, "--api-key-file", path])
        return Output(code, *capsys.readouterr())

    return call


def test_create_prints_only_the_key_on_stdout(key: RunKey) -> None:
    made = key("create", "alice", "--models", "llama*, digits", "--expires", "30d", "--rpm", "60")
    assert made.code == 0
    assert made.out.startswith("sk-naiad-")
    assert len(made.out.split("-", 3)[3]) >= 43
    shown = json.loads(key("show", "alice").out)
    assert shown["models"] == ["llama*", "digits"]
    assert shown["rpm_limit"] == 60
    assert shown["expires_at"] is not None
    assert made.out[18:] not in key("list").out + key("list", "--json").out


def test_rotate_and_revoke(key: RunKey) -> None:
    first = key("create", "alice").out
    second = key("rotate", "alice", "--grace", "1h").out
    assert first[:17] == second[:17]
    assert first != second
    assert json.loads(key("show", "alice").out)["old_secret_expires_at"] is not None
    assert key("revoke", first[9:17]).code == 0
    assert json.loads(key("show", first).out)["state"] == "revoked"
    assert "create a new key" in key("rotate", first[9:17]).err
    assert key("create", "alice").code == 0, "the name of a revoked key is free"


def test_usage_before_a_server_has_run(key: RunKey) -> None:
    key("create", "alice", "--tokens-per-day", "5")
    (row,) = json.loads(key("usage", "--json").out)
    assert (row["name"], row["requests"], row["tokens_per_day"]) == ("alice", 0, 5)
    assert "0 of 5 tokens" in key("usage").out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("create", "a", "--scopes", "everything"), "there is no scope 'everything'"),
        (("create", "a", "--rpm", "-1"), "rpm_limit: -1 is out of range"),
        (("create", "a", "--rpm", "x"), "not a valid integer"),
        (("create", "a", "--expires", "0d"), "--expires: '0d' is out of range"),
        (("create", "a", "--models", ""), "'*' stands for all models"),
        (("create", "a", "--metadata", "x"), "--metadata: 'x' is not of the kind KEY=VALUE"),
        (("create", " "), "name: expected 1 to 200"),
        (("show", "nobody"), "does not exist; create the first key"),
    ],
)
def test_bad_input_names_the_field(
    key: RunKey, tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    result = key(*arguments)
    assert result.code == 1
    assert part in result.err
    assert not (tmp_path / "keys.json").exists()


def test_a_broken_file_is_not_overwritten(key: RunKey, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("not json")
    result = key("create", "a")
    assert (result.code, "the key file is not JSON" in result.err) == (1, True)
    assert (tmp_path / "keys.json").read_text() == "not json"
