"""Which products may be made of bytes, by the file, the settings and the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="writes its own GGUF file")
pytest.importorskip("torch", reason="the weights are made by transformers")

from naiad.llm.engine_settings import EngineSettings
from naiad.llm.openvino.checkpoint import read_checkpoint
from naiad.llm.openvino.form import ModelForm, choose_form
from tests.unit.llm import openvino_gguf, test_gguf


def form(
    path: Path,
    head: str,
    settings: EngineSettings | None = None,
    *,
    is_tied: bool = True,
    multiplies_bytes: bool = True,
) -> ModelForm:
    made = test_gguf.tiny(
        "Llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=is_tied
    )
    openvino_gguf.write_model(path, made, "llama", [head])
    found = read_checkpoint(path).gguf
    assert found is not None
    return choose_form(*found, settings or EngineSettings(), multiplies_bytes)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(("kind", "group"), [("Q8_0", 32), ("Q5_0", 32), ("Q6_K", 16)])
def test_a_head_without_offsets_is_split(
    kind: str, group: int, is_tied: bool, tmp_path: Path
) -> None:
    found = form(tmp_path / "tiny.gguf", kind, is_tied=is_tied)
    assert found == ModelForm(splits_head=True, byte_group=group)


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "F16", "F32"])
def test_other_heads_are_not(kind: str, tmp_path: Path) -> None:
    assert form(tmp_path / "tiny.gguf", kind) == ModelForm()


def test_it_needs_a_processor_that_multiplies_bytes(tmp_path: Path) -> None:
    assert form(tmp_path / "tiny.gguf", "Q8_0", multiplies_bytes=False) == ModelForm()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    settings = EngineSettings(use_split_head=False)
    assert form(tmp_path / "tiny.gguf", "Q8_0", settings) == ModelForm()


def test_rounded_inputs_have_groups_of_their_own(tmp_path: Path) -> None:
    settings = EngineSettings(activations="int8")
    path = tmp_path / "tiny.gguf"
    assert form(path, "Q8_0", settings) == ModelForm(True, True, 16)
    assert form(path, "Q4_1", settings) == ModelForm(True, False, 16)
    assert form(path, "Q8_0", settings).name == "int8-split-16"
