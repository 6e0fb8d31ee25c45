"""Engines and quantized checkpoints are recognised by their files, without loading anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.backends.llm.checkpoint_kind import num_engine_ranks, readable_checkpoint
from naiad.errors import NaiadError


def folder(path: Path, config: object, *files: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for file in files:
        (path / file).touch()
    return path


def name_tokenizer(repository: Path, model: str, text: str) -> None:
    (repository / model).mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(
        'parameters {\n  key: "tokenizer_dir"\n  value: {\n'
        f'    string_value: "{text}"\n  }}\n}}\n'
    )


def engine(tmp_path: Path) -> Path:
    return folder(tmp_path / "engine", {"build_config": {"max_batch_size": 8}}, "rank0.engine")


def refusal(path: Path, repository: Path | None = None) -> str:
    with pytest.raises(NaiadError) as caught:
        readable_checkpoint(path, repository)
    return caught.value.message


def test_an_engine_says_for_how_many_gpus_it_was_built(tmp_path: Path) -> None:
    assert num_engine_ranks(engine(tmp_path)) == 1
    config = {"pretrained_config": {"mapping": {"world_size": 2, "tp_size": 2}}}
    assert num_engine_ranks(folder(tmp_path / "two", config, "rank0.engine")) == 2


def test_an_ordinary_checkpoint_and_a_gguf_file_are_left_alone(tmp_path: Path) -> None:
    path = folder(tmp_path / "c", {"model_type": "llama"}, "model.safetensors")
    assert readable_checkpoint(path, tmp_path) == path
    assert readable_checkpoint(tmp_path / "m.gguf") == tmp_path / "m.gguf"


def test_the_original_of_an_engine_is_taken_from_the_tokenizers_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "llama", {"model_type": "llama"}, "model.safetensors")
    name_tokenizer(tmp_path / "r", "preprocessing", str(path))
    name_tokenizer(tmp_path / "r", "postprocessing", str(path))
    assert readable_checkpoint(engine(tmp_path), tmp_path / "r") == path.resolve()


def test_two_different_checkpoints_are_not_guessed_between(tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = folder(tmp_path / name, {"model_type": "llama"}, "model.safetensors")
        name_tokenizer(tmp_path / "r", f"pre_{name}", str(path))
    assert refusal(engine(tmp_path), tmp_path / "r").endswith(
        "; pre_a's and pre_b's tokenizer_dir name different ones"
    )


def test_a_folder_with_only_a_tokenizer_is_no_checkpoint(tmp_path: Path) -> None:
    path = folder(tmp_path / "t", {"model_type": "llama"}, "tokenizer.json")
    name_tokenizer(tmp_path / "r", "preprocessing", str(path))
    name_tokenizer(tmp_path / "r", "postprocessing", "${tokenizer_dir}")
    assert refusal(engine(tmp_path), tmp_path / "r") == (
        "'engine' is a TensorRT-LLM engine, which only TensorRT-LLM can run: point engine_dir at "
        "the original checkpoint"
    )


def test_an_id_on_the_hub_is_only_named(tmp_path: Path) -> None:
    name_tokenizer(tmp_path / "r", "preprocessing", "meta-llama/Llama-2-7b")
    assert refusal(engine(tmp_path), tmp_path / "r").endswith(
        "point engine_dir at the original checkpoint; preprocessing's tokenizer_dir names one"
    )


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_quantized_checkpoints_are_left_to_the_engine(tmp_path: Path, method: str) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    path = folder(tmp_path / "c", config, "model.safetensors")
    assert readable_checkpoint(path) == path


def test_checkpoints_of_modelopt_and_tensorrt_llm_are_left_to_the_engine(tmp_path: Path) -> None:
    for name, config, file in (
        ("c", {"model_type": "llama"}, "hf_quant_config.json"),
        ("d", {"architecture": "LlamaForCausalLM"}, "rank0.safetensors"),
    ):
        path = folder(tmp_path / name, config, file)
        assert readable_checkpoint(path) == path
