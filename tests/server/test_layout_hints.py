"""What `naiad serve` says about a repository that is laid out wrongly."""

from __future__ import annotations

from pathlib import Path

from tests.server.harness import Server, launch_naiad
from tests.server.model_folder import write_model


def failed_start(repository: Path) -> Server:
    server = launch_naiad([str(repository)])
    try:
        assert server.wait_exit(60) != 0
    finally:
        server.stop()
    return server


def test_the_folder_of_a_model_given_as_repository(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m")
    server = failed_start(folder)
    hint = f"'{folder}' is a model, not a repository of models: use --model-repository {tmp_path}"
    assert any(hint in line for line in server.lines), server.tail()


def test_a_model_file_outside_of_a_version_directory(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", versions=())
    (folder / "model.py").write_text("class TritonPythonModel: pass")
    server = failed_start(tmp_path)
    hint = f"'{folder}/model.py' is not in a version directory: move it to {folder}/1/model.py"
    assert any(hint in line for line in server.lines), server.tail()


def test_an_empty_repository(tmp_path: Path) -> None:
    server = launch_naiad([str(tmp_path)])
    try:
        server.wait_for_line(f"'{tmp_path}': there are no models in this repository")
        server.wait_started()
    finally:
        server.stop()


def test_a_repository_given_without_its_flag(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    server = launch_naiad([], [str(tmp_path)])
    try:
        assert server.wait_exit(60) != 0
    finally:
        server.stop()
    assert any(
        f"To serve this model repository, write --model-repository {tmp_path}" in line
        for line in server.lines
    ), server.tail()
