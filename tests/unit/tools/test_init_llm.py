"""Repositories that `naiad init llm` writes pass the same checks as anybody's; `--model` makes them
on the fly."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from naiad.cli.main import naiad
from naiad.errors import NaiadError
from naiad.repository.check.check import Severity, check_repository
from naiad.tools.init_llm import init_llm, model_name
from naiad.tools.init_llm_config import llm_config
from naiad.tools.model_argument import checkpoint_repository


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("form", ["one", "four-part"])
def test_what_is_written_passes_the_check(tmp_path: Path, form: str) -> None:
    out = tmp_path / "repository"
    result = CliRunner().invoke(
        naiad,
        [
            "init",
            "llm",
            "--checkpoint",
            str(checkpoint(tmp_path / "tiny")),
            "--form",
            form,
            str(out),
        ],
    )
    assert result.exit_code == 0, result.output
    expected = (
        ["tiny"]
        if form == "one"
        else ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
    )
    assert sorted(path.name for path in out.iterdir()) == expected
    errors = [finding for finding in check_repository([out]) if finding.severity is Severity.ERROR]
    assert not errors, errors


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    init_llm("org/model", tmp_path / "out")
    with pytest.raises(NaiadError, match="is not empty"):
        init_llm("org/model", tmp_path / "out")


def test_the_four_part_form_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match=r"needs a folder with tokenizer\.json"):
        init_llm("weights.gguf", tmp_path / "out", form="four-part")
    assert not (tmp_path / "out").exists()


def test_names_can_stand_in_a_url() -> None:
    assert model_name("/models/Smol LM (2).gguf") == "Smol_LM__2_"
    assert model_name("org/Llama-3.2") == "Llama-3.2"


def test_models_of_the_command_line() -> None:
    with checkpoint_repository(["org/one", "two=org/one"]) as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]
        assert 'string_value: "org/one"' in (folder / "two" / "config.pbtxt").read_text()
    assert not folder.exists()
    with (
        pytest.raises(NaiadError, match="two models of --model are called 'one'"),
        checkpoint_repository(["a/one", "b/one"]),
    ):
        pass


def test_the_model_of_naiad_pull_comes_with_its_makers_sampling() -> None:
    assert '"sampling_defaults" value: { string_value: "{\\"temperature\\": 0.2' in llm_config(
        "smollm2"
    )
    assert "sampling_defaults" not in llm_config("/models/other")
