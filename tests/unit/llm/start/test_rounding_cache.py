"""Weights that are rounded at load are kept, and the next start reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

import transformers
from safetensors.torch import load_file, save_file

from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from tests.unit.llm.checkpoints import save_model
from tests.unit.llm.engines import request, run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    config = transformers.Qwen2Config(
        vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    save_model(config, folder)
    return folder


class Start:
    """One start of an engine: what it logged, and its greedy tokens."""

    def __init__(self, folder: Path, cache: Path, quantization: str) -> None:
        self.lines: list[str] = []
        settings = EngineSettings(
            device="cpu", num_kv_blocks=20, max_num_seqs=2, quantization=quantization
        )
        engine = load_engine(folder, settings, None, cache, self.lines.append)
        self.is_cached = "rounded at an earlier start" in engine.quantization
        self.tokens = run(engine, [request("a", [5, 6, 7], max_tokens=12)])[("a", 0)].tokens


@pytest.mark.parametrize("quantization", ["int4", "int8", "fp8"])
def test_the_second_start_reads_what_the_first_has_rounded(
    plain: Path, tmp_path: Path, quantization: str
) -> None:
    first = Start(plain, tmp_path, quantization)
    second = Start(plain, tmp_path, quantization)
    assert (first.is_cached, second.is_cached) == (False, True)
    assert second.tokens == first.tokens
    assert first.lines == second.lines == []
    assert not list((tmp_path / "quantized").glob("making-*"))


def test_roundings_and_checkpoints_have_folders_of_their_own(plain: Path, tmp_path: Path) -> None:
    Start(plain, tmp_path, "int8")
    assert not Start(plain, tmp_path, "int4").is_cached
    other = tmp_path / "other"
    other.mkdir()
    for file in plain.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    tensors = load_file(other / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = -tensors[name]
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    assert not Start(other, tmp_path, "int8").is_cached
    assert len(list((tmp_path / "quantized").iterdir())) == 3


@pytest.mark.parametrize("damage", ["missing", "shorter", "other bytes"])
def test_a_damaged_cache_is_made_again(plain: Path, tmp_path: Path, damage: str) -> None:
    first = Start(plain, tmp_path, "int4")
    (path,) = (tmp_path / "quantized").glob("*/layer-00001.safetensors")
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(content[:-7])
    else:
        path.write_bytes(b"\xff" * 64 + content[64:])
    second = Start(plain, tmp_path, "int4")
    assert not second.is_cached
    assert second.tokens == first.tokens
    assert path.read_bytes() == content
    assert Start(plain, tmp_path, "int4").is_cached


def test_a_cache_that_cannot_be_written_costs_a_line_in_the_log(
    plain: Path, tmp_path: Path
) -> None:
    (tmp_path / "quantized").write_text("not a folder")
    start = Start(plain, tmp_path, "int8")
    assert len(start.tokens) == 12
    assert len(start.lines) == 1
    assert "the rounded weights cannot be kept in" in start.lines[0]


def test_drafts_of_processes_that_are_gone_are_removed(plain: Path, tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = tmp_path / "quantized" / f"making-{int(gone.stdout)}-x"
    own = tmp_path / "quantized" / f"making-{os.getpid()}-y"
    for folder in (left, own):
        folder.mkdir(parents=True)
        (folder / "layer-00000.safetensors").write_bytes(b"half")
    Start(plain, tmp_path, "int8")
    assert not left.exists()
    assert own.exists()
