from __future__ import annotations

from pathlib import Path

from naiad.cluster.supervisor import Silence, repository_problem


def test_a_server_that_is_silent_for_long_hangs() -> None:
    silence = Silence(5.0)
    silence.on_response(100.0)
    assert [silence.on_no_response(100.0 + second) for second in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert silence.on_no_response(105.0) == 5.0


def test_a_response_ends_the_silence() -> None:
    silence = Silence(5.0)
    silence.on_response(100.0)
    for second in range(4):
        silence.on_no_response(100.0 + second)
    silence.on_response(104.5)
    assert [silence.on_no_response(105.0 + second) for second in range(4)] == [0, 0, 0, 0]


def test_a_server_that_has_not_responded_yet_starts() -> None:
    silence = Silence(5.0)
    assert [silence.on_no_response(float(second)) for second in range(100)] == [0.0] * 100
    silence.on_response(100.0)
    silence.begin()
    assert [silence.on_no_response(200.0 + second) for second in range(10)] == [0.0] * 10


def test_a_machine_that_was_stopped_as_a_whole_kills_nothing() -> None:
    silence = Silence(5.0)
    silence.on_response(100.0)
    assert silence.on_no_response(1000.0) == 0.0, "the check that was under way"
    silence.on_response(1000.5)
    assert silence.on_no_response(1001.0) == 0.0


def test_what_a_node_says_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "add_sub").mkdir()
    path = str(tmp_path)
    assert repository_problem(path, ["add_sub", "*"]) == ""
    assert repository_problem(path, ["addsub"]) == (
        f"'{path}' has no model 'addsub', did you mean 'add_sub'?"
    )
    assert repository_problem(f"{path}/none", []).startswith(f"this node has no folder '{path}/no")
    assert repository_problem(f"{path}/add_sub", []) == ""
    assert repository_problem("s3://bucket/models", ["m"]) == ""
