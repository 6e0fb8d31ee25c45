"""`load_format: dummy`: an engine from a config.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("tokenizers", reason="needs tokenizers (the llm extra)")

from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from tests.unit.llm.engines import request, run

SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


def settings(load_format: str) -> EngineSettings:
    return EngineSettings(device="cpu", num_kv_blocks=20, max_num_seqs=2, load_format=load_format)


def write_config(folder: Path, model_type: str) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **SHAPE}))
    return folder


def test_generates_without_weights_on_disk(tmp_path: Path) -> None:
    engine = load_engine(write_config(tmp_path, "llama"), settings("dummy"))
    done = run(engine, [request("a", [1, 2, 3], max_tokens=4)])[("a", 0)]
    assert len(done.tokens) == 4
    assert all(0 <= token < 97 for token in done.tokens)


def test_only_families_with_a_fast_path_have_it(tmp_path: Path) -> None:
    with pytest.raises(
        NaiadError, match="load_format is 'dummy', which models of type 'bloom' cannot have"
    ):
        load_engine(write_config(tmp_path, "bloom"), settings("dummy"))


def test_rejects_other_values(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="load_format is 'npcache', expected auto or dummy"):
        load_engine(write_config(tmp_path, "llama"), settings("npcache"))
