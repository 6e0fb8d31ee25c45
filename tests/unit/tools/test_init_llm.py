"""Tests the repositories that `naiad init llm` writes, and the temporary ones of `--model`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from naiad.cli.main import naiad
from naiad.errors import NaiadError
from naiad.repository.check.check import Severity, check_repository
from naiad.repository.deploy.llm_config import checkpoint_name, llm_config
from naiad.tools.init_llm import init_llm
from naiad.tools.model_argument import checkpoint_repository


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_an_embedding_model_is_refused_at_init_check_and_start(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "minilm")
    (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    message = "'minilm' is an embedding model \\(BertModel\\), and is not a language model"
    with pytest.raises(NaiadError, match=message):
        init_llm(str(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(NaiadError, match=message), checkpoint_repository([str(folder)]):
        pass
    model = tmp_path / "repository/m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(llm_config(str(folder)))
    (finding,) = check_repository([tmp_path / "repository"])
    assert finding.severity is Severity.ERROR
    assert re.match(message, finding.problem.message)
    assert "naiad init embeddings" in finding.problem.fix


@pytest.mark.parametrize("form", ["one", "four-part"])
def test_written_repositories_pass_the_check(tmp_path: Path, form: str) -> None:
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
    errors = [
        finding
        for finding in check_repository([out], is_installed=lambda package: True)
        if finding.severity is Severity.ERROR
    ]
    assert not errors, errors


@pytest.mark.parametrize(("form", "model"), [("one", "tiny"), ("four-part", "tensorrt_llm")])
def test_a_model_may_be_split(tmp_path: Path, form: str, model: str) -> None:
    out = tmp_path / "repository"
    flags = ["--checkpoint", str(checkpoint(tmp_path / "tiny")), "--form", form]
    flags += ["--tensor-parallel-size", "4", str(out)]
    result = CliRunner().invoke(naiad, ["init", "llm", *flags])
    assert result.exit_code == 0, result.output
    configs = {path.parent.name: path.read_text() for path in out.glob("*/config.pbtxt")}
    named = [name for name, text in configs.items() if "tensor_parallel_size" in text]
    assert named == [model]
    assert 'string_value: "4"' in configs[model]


def test_does_not_overwrite_files(tmp_path: Path) -> None:
    init_llm("org/model", tmp_path / "out")
    with pytest.raises(NaiadError, match="is not empty"):
        init_llm("org/model", tmp_path / "out")


def test_four_part_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match=r"needs a checkpoint folder with tokenizer\.json"):
        init_llm("weights.gguf", tmp_path / "out", form="four-part")
    assert not (tmp_path / "out").exists()


def test_model_names_are_safe_in_a_url() -> None:
    assert checkpoint_name("/models/Smol LM (2).gguf") == "Smol_LM__2_"
    assert checkpoint_name("org/Llama-3.2") == "Llama-3.2"


def test_temporary_repository_for_checkpoints() -> None:
    with checkpoint_repository(["org/one", "two=org/one"]) as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]
        assert 'string_value: "org/one"' in (folder / "two" / "config.pbtxt").read_text()
    assert not folder.exists()
    with (
        pytest.raises(NaiadError, match="two --model options name the model 'one'"),
        checkpoint_repository(["a/one", "b/one"]),
    ):
        pass


def test_the_demo_model_is_greedy_by_default() -> None:
    line = '"{\\"temperature\\": 0, \\"frequency_penalty\\": 0.3}"'
    assert f'key: "sampling_defaults" value: {{ string_value: {line} }}' in llm_config("smollm2")
    example = Path(__file__).parents[3] / "examples/llm/repository/smollm2/config.pbtxt"
    assert f"string_value: {line} }}" in example.read_text()
    assert "sampling_defaults" not in llm_config("/models/other")


def test_a_file_of_a_model_is_linked_with_its_weights(tmp_path: Path) -> None:
    for name in ("net.onnx", "net.onnx.data", "other.onnx"):
        (tmp_path / name).write_bytes(b"x")
    with checkpoint_repository([str(tmp_path / "net.onnx")]) as folder:
        assert sorted(file.name for file in (folder / "net" / "1").iterdir()) == [
            "net.onnx",
            "net.onnx.data",
        ]
        config = (folder / "net" / "config.pbtxt").read_text()
        assert 'backend: "onnxruntime"' in config
        assert 'default_model_filename: "net.onnx"' in config


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.bin"
    path.write_bytes(b"x")
    with (
        pytest.raises(NaiadError, match=r"expected a checkpoint .* or a model's file \(.onnx"),
        checkpoint_repository([str(path)]),
    ):
        pass
