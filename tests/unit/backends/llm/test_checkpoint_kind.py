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


EMBEDDINGS = "is not a language model: `naiad init embeddings CHECKPOINT REPOSITORY` writes"


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("BertModel", "is an embedding model"),
        ("XLMRobertaModel", "is an embedding model"),
        ("NewModel", "is an embedding model"),
        ("BertForMaskedLM", "is an embedding model"),
        ("T5EncoderModel", "is an embedding model"),
        ("XLMRobertaForSequenceClassification", "classifies texts"),
        ("Wav2Vec2ForCTC", "writes down speech"),
        ("WhisperForConditionalGeneration", "writes down speech"),
        ("ViTForImageClassification", "classifies images"),
    ],
)
def test_what_is_no_language_model_is_refused_with_the_way_to_serve_it(
    architecture: str, message: str, tmp_path: Path
) -> None:
    config = {"model_type": "x", "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NaiadError, match=message) as caught:
        readable_checkpoint(tmp_path)
    assert architecture in caught.value.message
    assert (EMBEDDINGS in caught.value.message) == (message == "is an embedding model")


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling", "model_index.json"])
def test_files_of_other_tools_tell_it_too(name: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    readable_checkpoint(tmp_path)
    if name == "1_Pooling":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("[]")
    with pytest.raises(NaiadError, match="is not a language model"):
        readable_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM", "GPT2LMHeadModel", "LlamaModel", "MistralModel", "BertLMHeadModel",
        "BertForCausalLM", "T5ForConditionalGeneration", "Gemma3ForConditionalGeneration",
        "BloomModel", "Brandnew", 7,
    ],
)  # fmt: skip
def test_what_may_be_a_language_model_is_left_to_the_engine(
    architecture: str | int, tmp_path: Path
) -> None:
    config = {"model_type": "x", "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert readable_checkpoint(tmp_path) == tmp_path


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
