"""`naiad init embeddings`: the encoder as ONNX gives what transformers gives."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from naiad.errors import NaiadError
from naiad.tools.embeddings import onnx_writer
from naiad.tools.embeddings.init_embeddings import init_embeddings
from naiad.tools.init_command import command

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")

SHAPE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
MODELS = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}


def make_checkpoint(folder: Path, kind: str = "bert", dtype: str = "float32") -> Any:
    torch.manual_seed(7)
    name = MODELS[kind]
    config = getattr(transformers, f"{name}Config")(**SHAPE)
    model = getattr(transformers, f"{name}Model")(config).eval().to(getattr(torch, dtype))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(60)}, "w3")
    tokenizers.Tokenizer(words).save(str(folder / "tokenizer.json"))
    return model.float()


def write_modules(folder: Path, pooling: dict[str, Any], *modules: str) -> None:
    names = ["Transformer", "Pooling", *modules]
    entries = [{"type": f"sentence_transformers.models.{name}"} for name in names]
    for index, entry in enumerate(entries):
        entry["path"] = f"{index}_{names[index]}"
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def run(model_file: Path, ids: Any, mask: Any) -> Any:
    session = onnxruntime.InferenceSession(str(model_file), providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_encoder_gives_what_transformers_gives(
    kind: str, pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pooling == "cls":
        monkeypatch.setattr(onnx_writer, "MAX_FILE_BYTES", 1000)  # constants in a second file
    checkpoint = tmp_path / "my model"
    model = make_checkpoint(checkpoint, kind)
    flags = {f"pooling_mode_{name}_token{'s' * (name == 'mean')}": name == pooling
             for name in ("cls", "mean")}  # fmt: skip
    write_modules(checkpoint, flags, *(["Normalize"] if pooling == "mean" else []))
    written = init_embeddings(checkpoint, tmp_path / "out", "m")
    assert (tmp_path / "out/m_encoder/1/model.onnx.data").exists() == (pooling == "cls")
    ids = np.array([[5, 9, 30, 2, 17], [8, 2, 44, 1, 1]], np.int64)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
    with torch.inference_mode():
        states = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))[0].numpy()
    shares = (mask / mask.sum(1, keepdims=True))[:, :, None]
    expected = (states * shares).sum(1) if pooling == "mean" else states[:, 0]
    if pooling == "mean":
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(run(written[-1], ids, mask), expected, atol=2e-5)


def test_other_number_formats_become_float32(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "c", dtype="bfloat16")
    file = init_embeddings(tmp_path / "c", tmp_path / "out", "m")[-1]
    ids = np.array([[5, 9, 30]], np.int64)
    with torch.inference_mode():
        states = model(torch.from_numpy(ids))[0].numpy().mean(1)
    expected = states / np.linalg.norm(states)
    np.testing.assert_allclose(run(file, ids, np.ones_like(ids)), expected, atol=2e-5)


def test_the_command_says_how_to_serve_it(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "mini")
    (tmp_path / "mini/sentence_bert_config.json").write_text('{"max_seq_length": 33}')
    arguments = ["embeddings", str(tmp_path / "mini"), str(tmp_path / "out")]
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert result.exception is None
    assert '"model": "mini", "input": "a text"' in result.output
    assert "MAX_TOKENS = 33" in (tmp_path / "out/mini_tokenizer/1/model.py").read_text()
    with pytest.raises(NaiadError, match="is not empty"):
        CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)


def change(folder: Path, **values: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mpnet"}, "has model_type 'mpnet', expected one of bert, roberta"),
        ({"hidden_act": "relu"}, "has hidden_act 'relu', expected 'gelu'"),
        ({"num_attention_heads": "x"}, "has num_attention_heads 'x', expected a number"),
        ({"num_hidden_layers": 3}, "has no tensor 'encoder.layer.2"),
    ],
)
def test_what_would_give_other_numbers_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "c")
    change(tmp_path / "c", **values)
    with pytest.raises(NaiadError, match=message):
        init_embeddings(tmp_path / "c", tmp_path / "out", "m")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        ({"pooling_mode_max_tokens": True}, [], "pools by pooling_mode_max_tokens, expected mean"),
        ({"pooling_mode": "lasttoken"}, [], "pools by lasttoken, expected mean or cls"),
        ({"pooling_mode_mean_tokens": True}, ["Dense"], "has a module 'Dense', expected only"),
    ],
)
def test_modules_that_are_not_written_are_refused(
    pooling: dict[str, Any], modules: list[str], message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "c")
    write_modules(tmp_path / "c", pooling, *modules)
    with pytest.raises(NaiadError, match=message):
        init_embeddings(tmp_path / "c", tmp_path / "out", "m")


@pytest.mark.parametrize("data", [b"", b"x" * 20, struct.pack("<Q", 2) + b"[]"])
def test_a_file_that_is_damaged_is_refused(data: bytes, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c")
    (tmp_path / "c/model.safetensors").write_bytes(data)
    with pytest.raises(NaiadError, match=r"model\.safetensors of .* is not a safetensors file"):
        init_embeddings(tmp_path / "c", tmp_path / "out", "m")
