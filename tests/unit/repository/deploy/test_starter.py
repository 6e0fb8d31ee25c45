"""Repositories that `naiad init` writes pass the check; nothing that exists is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from naiad.cli.main import naiad
from naiad.errors import NaiadError
from naiad.repository.check.check import check_repository
from naiad.repository.deploy.starter import init_model


@pytest.mark.parametrize(("kind", "name"), [("python", "double"), ("onnx", "double_onnx")])
def test_what_is_written_passes_the_check(tmp_path: Path, kind: str, name: str) -> None:
    out = tmp_path / "models"
    result = CliRunner().invoke(naiad, ["init", kind, str(out)])
    assert result.exit_code == 0, result.output
    assert check_repository([out], is_installed=lambda package: True) == []
    assert (out / name / "request.json").is_file()
    assert f"naiad serve --model-repository {out}" in result.output
    assert f"/v2/models/{name}/infer" in result.output


def test_a_file_of_ones_own_is_copied(tmp_path: Path) -> None:
    file = tmp_path / "net.pt"
    file.write_bytes(b"content")
    paths = init_model("torchscript", tmp_path / "models", "net", file)
    folder = tmp_path / "models" / "net"
    assert paths == [folder / "1" / "model.pt", folder / "config.pbtxt"]
    assert (folder / "1" / "model.pt").read_bytes() == b"content"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    init_model("python", tmp_path, "m", None)
    with pytest.raises(NaiadError, match="exists already"):
        init_model("onnx", tmp_path, "m", None)
    with pytest.raises(NaiadError, match="is not a file"):
        init_model("onnx", tmp_path, "n", tmp_path / "nowhere.onnx")
    assert not (tmp_path / "n").exists()
