"""Every engine computes what float32 computes, for every format that it reads: distributions and
greedy tokens.

Made checkpoints for each GGUF type, each architecture and each safetensors dtype; and the real
SmolLM2 file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
pytest.importorskip(
    "gguf", reason="needs gguf, the format's reference package, to write test files"
)

from naiad.backends.llm.checkpoint import PULLED, cache_dir
from naiad.errors import NaiadError
from naiad.llm.checkpoint.gguf_file import BLOCKS
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from naiad.tools.pull import pull
from tests.unit.llm import agreement, openvino_gguf, test_gguf, tokenizers_made

KINDS = [entry[0] for entry in BLOCKS.values()]
MAX_KL = 0.02
MIN_GREEDY = 0.9
SIZES = {"hidden_size": 256, "intermediate_size": 256, "max_position_embeddings": 256}
"""Rows of the K types are whole blocks of 256."""
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama3": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 64, "tie_word_embeddings": True}),
}


def chunks() -> list[list[int]]:
    source = torch.Generator().manual_seed(4)
    return [torch.randint(3, 380, (100,), generator=source).tolist() for _ in range(3)]


def prompts() -> list[list[int]]:
    source = torch.Generator().manual_seed(5)
    return [torch.randint(3, 380, (5 + index,), generator=source).tolist() for index in range(20)]


def write(path: Path, name: str, kinds: list[str]) -> Any:
    """The model as the file holds it, in float32."""
    kind, values = ARCHITECTURES[name]
    model = calm(test_gguf.tiny(kind, **SIZES, **values))
    openvino_gguf.write_model(path, model, "llama" if name == "llama3" else name, kinds)
    return model


def calm(model: Any) -> Any:
    """Smaller weights, so that rounding a key in the KV cache does not turn the whole attention to
    another token."""
    for parameter in model.parameters():
        parameter.data.mul_(0.45 if parameter.dim() > 1 else 1.0)
    return model


def check(model: Any, logits: agreement.Logits, engine: Any) -> None:
    found = agreement.compare(agreement.reference_logits(model), logits, chunks())
    assert found.mean_kl < MAX_KL, found
    same = [
        agreement.engine_greedy(engine, prompt) == agreement.greedy(model, prompt)
        for prompt in prompts()
    ]
    assert sum(same) >= MIN_GREEDY * len(same), f"{sum(same)} of {len(same)}"


def check_native(model: Any, path: Path, **values: Any) -> None:
    settings = EngineSettings(
        device="cpu",
        max_num_batched_tokens=256,
        num_kv_blocks=64,
        enable_prefix_caching=False,
        **values,
    )
    engine = load_engine(path, settings)
    check(model, agreement.native_logits(engine), engine)


def check_openvino(model: Any, path: Path) -> None:
    pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
    from naiad.llm.openvino.engine import open_openvino

    said: list[str] = []
    engine = open_openvino(
        path,
        EngineSettings(num_kv_blocks=64, max_num_seqs=4),
        1,
        path.parent / "cache",
        said.append,
    )
    folder = path if engine.conversion is None else engine.conversion.folder
    check(model, agreement.openvino_logits(folder, 1, engine.properties), engine)


@pytest.mark.parametrize("kind", KINDS)
def test_native_on_every_gguf_type(kind: str, tmp_path: Path) -> None:
    check_native(write(tmp_path / "model.gguf", "llama", [kind]), tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_openvino_on_every_gguf_type(kind: str, tmp_path: Path) -> None:
    check_openvino(write(tmp_path / "model.gguf", "llama", [kind]), tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_openvino_with_rounded_activations_stays_near(kind: str, tmp_path: Path) -> None:
    """Made models have many near ties, so that their greedy tokens are not held to float32's."""
    pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
    from naiad.llm.openvino.engine import open_openvino

    path = tmp_path / "model.gguf"
    model = write(path, "llama", [kind])
    settings = EngineSettings(num_kv_blocks=64, max_num_seqs=4, activations="int8")
    engine = open_openvino(path, settings, 1, tmp_path / "cache", lambda text: None)
    assert engine.conversion is not None
    found = agreement.compare(
        agreement.reference_logits(model),
        agreement.openvino_logits(engine.conversion.folder, 1, engine.properties),
        chunks(),
    )
    assert found.mean_kl < MAX_KL, found


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q6_K"])
def test_a_split_head_loses_nothing(kind: str, tmp_path: Path) -> None:
    """OpenVINO rounds the inputs of the head to eight bits; that each row goes in twice makes up
    for it. With one row each, logits of these models differ by 1/250 of the largest."""
    pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
    from naiad.llm.openvino.checkpoint import read_checkpoint
    from naiad.llm.openvino.conversion import convert
    from naiad.llm.openvino.engine import pipeline_properties
    from naiad.llm.openvino.form import ModelForm, choose_form

    path = tmp_path / "model.gguf"
    write(path, "llama", [kind])
    found = read_checkpoint(path).gguf
    assert found is not None
    logits = []
    for form in (ModelForm(), choose_form(*found, EngineSettings(), multiplies_bytes=True)):
        folder = convert(path, *found, tmp_path / "cache", lambda text: None, form).folder
        logits.append(agreement.openvino_logits(folder, 1, pipeline_properties(form)))
    plain, split = logits
    for chunk in chunks():
        expected = plain(chunk)
        assert np.abs(expected - split(chunk)).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "llama"])
def test_both_engines_on_every_architecture(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = write(path, name, ["Q4_1", "Q8_0", "Q4_K", "Q6_K"])
    if name == "llama3":
        add_rope_factors(path, model)
    check_native(model, path)
    check_openvino(model, path)


def add_rope_factors(path: Path, model: Any) -> None:
    """Llama 3.1's way: each frequency has a factor of its own in the file. Here all of them are the
    linear scaling's."""
    gguf = pytest.importorskip("gguf")

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "llama")
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        sub_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    half = model.config.hidden_size // model.config.num_attention_heads // 2
    writer.add_tensor(
        "rope_freqs.weight", np.full(half, model.config.rope_parameters["factor"], np.float32)
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_native_on_every_safetensors_dtype(dtype: str, tmp_path: Path) -> None:
    calm(test_gguf.tiny("Llama", **SIZES)).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    check_native(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval(),
        tmp_path,
    )


def test_openvino_on_a_folder_of_its_own_format(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
    from naiad.llm.openvino.checkpoint import read_checkpoint
    from naiad.llm.openvino.conversion import convert
    from naiad.llm.openvino.form import ModelForm

    path = tmp_path / "model.gguf"
    model = write(path, "llama", ["Q4_1"])
    found = read_checkpoint(path).gguf
    assert found is not None
    folder = convert(path, *found, tmp_path / "cache", lambda text: None, ModelForm()).folder
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    tokenizers_made.byte_level(400).save(str(folder / "tokenizer.json"))
    check_openvino(model, folder)
    from naiad.llm.openvino.engine import open_openvino

    with pytest.raises(NaiadError, match="activations is 'int8', which is for GGUF files"):
        open_openvino(folder, EngineSettings(activations="int8"), 1, tmp_path, lambda text: None)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    path = Path(os.environ.get("NAIAD_SMOLLM2_GGUF") or cache_dir() / PULLED["smollm2"])
    if not path.exists():
        try:
            return pull("smollm2", lambda text: None)
        except NaiadError as error:
            pytest.skip(f"SmolLM2 is not there and cannot be fetched: {error.message}")
    return path


@pytest.mark.parametrize("engine", ["native", "openvino"])
def test_smollm2(engine: str, smollm2: Path) -> None:
    """A part of what bench/llm_agreement.py measures: everyday questions begin as in float32, and
    end by themselves."""
    from naiad.llm.checkpoint.gguf import open_gguf

    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    checkpoint = open_gguf(smollm2)
    settings = EngineSettings(
        device="cpu",
        max_num_batched_tokens=512,
        num_kv_blocks=128,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    if engine == "native":
        opened: Any = load_engine(smollm2, settings)
        logits = agreement.native_logits(opened)
    else:
        pytest.importorskip(
            "openvino_genai", reason="needs openvino-genai (the openvino-llm extra)"
        )
        from naiad.llm.openvino.engine import open_openvino

        opened = open_openvino(smollm2, settings, 1, cache_dir(), lambda text: None)
        logits = agreement.openvino_logits(opened.conversion.folder, 1, opened.properties)
    text = checkpoint.tokenizer.encode(Path("README.md").read_text())[:256]
    found = agreement.compare(agreement.reference_logits(model), logits, [text])
    assert found.mean_kl < MAX_KL, found
    same = []
    for question in agreement.QUESTIONS[:10]:
        prompt = checkpoint.tokenizer.encode(agreement.as_chat(checkpoint, question), False)
        same.append(agreement.engine_greedy(opened, prompt) == agreement.greedy(model, prompt))
    assert sum(same) >= MIN_GREEDY * len(same), same
