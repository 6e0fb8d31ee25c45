"""A converted GGUF file is made once, made again when it is damaged, and does without the cache
where that cannot be written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
openvino = pytest.importorskip("openvino")
pytest.importorskip("gguf", reason="writes its own GGUF file")
pytest.importorskip("torch", reason="the weights are made by transformers")

from naiad.errors import NaiadError
from naiad.llm.checkpoint.dequantize import Groups
from naiad.llm.openvino import conversion, model
from naiad.llm.openvino.checkpoint import read_checkpoint
from naiad.llm.openvino.conversion import MODEL, WEIGHTS, Conversion, convert
from naiad.llm.openvino.form import ModelForm
from tests.unit.llm import openvino_gguf, test_gguf


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return openvino_gguf.write(tmp_path / "tiny.gguf")


EXACT = ModelForm()
SPLIT = ModelForm(splits_head=True, byte_group=32)
ROUNDED = ModelForm(rounds_inputs=True, byte_group=16)


def run(path: Path, cache: Path, form: ModelForm = EXACT) -> tuple[Conversion, list[str]]:
    found = read_checkpoint(path).gguf
    assert found is not None
    said: list[str] = []
    return convert(path, *found, cache, said.append, form), said


def test_it_is_made_once_and_found_by_content(checkpoint: Path, tmp_path: Path) -> None:
    first, said = run(checkpoint, tmp_path / "cache")
    assert [text.split(" for ")[0] for text in said] == ["converting 'tiny.gguf'"]
    assert first.has_tokenizer
    copy = checkpoint.rename(tmp_path / "other.gguf")
    second, said = run(copy, tmp_path / "cache")
    assert second.folder == first.folder
    assert said == []
    assert [entry.name for entry in first.folder.parent.iterdir()] == [first.folder.name]


def test_each_form_has_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    made = test_gguf.tiny("Llama", hidden_size=128, tie_word_embeddings=True)
    openvino_gguf.write_model(path, made, "llama", ["Q4_1", "Q8_0"])
    exact = run(path, tmp_path / "cache")[0].folder
    rounded = run(path, tmp_path / "cache", ROUNDED)[0].folder
    split = run(path, tmp_path / "cache", SPLIT)[0].folder
    assert run(path, tmp_path / "cache")[0].folder == exact
    assert len({exact, rounded, split}) == 3
    layers = made.config.num_hidden_layers
    assert zero_point_types(exact) == {"f32": 7 * layers + 1}
    assert zero_point_types(rounded) == {"f32": 3 * layers + 1, "u8": 4 * layers}
    assert zero_point_types(split) == {"f32": 7 * layers}, "the head has none"


def test_matrices_of_one_type_are_joined_for_attention(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    made = test_gguf.tiny("Qwen2", hidden_size=128, tie_word_embeddings=True)
    openvino_gguf.write_model(path, made, "qwen2", ["Q8_0"])
    folder = run(path, tmp_path / "cache")[0].folder
    layers = made.config.num_hidden_layers
    assert zero_point_types(folder) == {"f32": 5 * layers + 1}


def zero_point_types(folder: Path) -> dict[str, int]:
    """By the subtractions between a matrix of integers and its scales."""
    types: Counter[str] = Counter()
    for node in openvino.Core().read_model(folder / MODEL).get_ops():
        if node.get_type_name() == "Subtract":
            source = node.input_value(1).get_node()
            if source.get_type_name() == "Convert":
                source = source.input_value(0).get_node()
            if source.get_type_name() == "Constant":
                types[source.get_element_type().to_string()] += 1
    return dict(types)


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, conversion.LIST])
@pytest.mark.parametrize("is_cut", [True, False])
def test_what_is_damaged_is_made_again(
    name: str, is_cut: bool, checkpoint: Path, tmp_path: Path
) -> None:
    folder = run(checkpoint, tmp_path / "cache")[0].folder
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(
        whole[: len(whole) // 2] if is_cut else whole[:10] + b"!" + whole[11:]
    )
    again, said = run(checkpoint, tmp_path / "cache")
    assert "is damaged: converting 'tiny.gguf' again" in said[0]
    assert again.folder == folder
    assert run(checkpoint, tmp_path / "cache")[1] == []


def test_without_a_cache_that_can_be_written_it_is_temporary(
    checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, where a folder is wanted")
    found, said = run(checkpoint, tmp_path / "cache")
    assert "cannot be kept" in said[-1]
    folder = found.folder
    assert (folder / MODEL).exists()
    del found
    assert not folder.exists()


def test_a_full_disk_is_told(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serialize(graph: Any, xml: Path, weights: Path) -> None:
        """As OpenVINO does it on a full disk: without a word."""
        openvino_serialize(graph, xml, weights)
        weights.write_bytes(weights.read_bytes()[:1000])

    openvino_serialize = openvino.serialize
    monkeypatch.setattr(openvino, "serialize", serialize)
    with pytest.raises(
        NaiadError, match=r"neither the cache nor .* can be written \(the disk is full\)"
    ):
        run(checkpoint, tmp_path / "cache")
    assert list((tmp_path / "cache" / "openvino").iterdir()) == []


def test_too_little_room_is_seen_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "SPARE_BYTES", 1 << 60)
    with pytest.raises(NaiadError, match="MiB are needed"):
        run(checkpoint, tmp_path / "cache")


def test_a_group_without_steps_keeps_its_value() -> None:
    """Q4_1 writes a step of 0 where all values of a block are the same."""
    scales, offsets = (
        np.array([[0.5], [0], [0]], np.float32),
        np.array([[-1.25], [0.75], [0]], np.float32),
    )
    groups = Groups(np.tile(np.arange(4, dtype=np.uint8), (3, 1)), scales, offsets)
    found = model._without_flat_groups(groups)
    assert found.offsets is not None
    zero_points = -found.offsets / found.scales
    np.testing.assert_array_equal(
        found.scales * (found.integers - zero_points), scales * groups.integers + offsets
    )


def test_whole_zero_points_are_near_those_of_the_file() -> None:
    source = np.random.default_rng(1)
    integers = source.integers(0, 16, (1000, 32), np.uint8)
    scales = source.uniform(0.01, 0.1, (1000, 1)).astype(np.float32)
    zero_points = source.uniform(0, 15, (1000, 1)).astype(np.float32)
    found = model.with_whole_zero_points(model.ZeroPoints(integers, scales, zero_points))
    assert found is not None
    assert found.integers.dtype == found.zero_points.dtype == np.uint8
    values = found.scales * (found.integers.astype(np.float32) - found.zero_points)
    steps = np.abs(values / scales - (integers - zero_points))
    assert steps.max() < 1 / 32
    assert steps.mean() < 1 / 200


def test_zero_points_that_are_whole_stay_with_their_integers() -> None:
    integers = np.array([[0, 15], [3, 4]], np.uint8)
    ones, eights = np.ones((2, 1), np.float32), np.full((2, 1), 8, np.float32)
    found = model.with_whole_zero_points(model.ZeroPoints(integers, ones, eights))
    assert found is not None
    np.testing.assert_array_equal(found.integers, integers)
    np.testing.assert_array_equal(found.scales, ones)
    np.testing.assert_array_equal(found.zero_points, eights)


@pytest.mark.parametrize("zero_point", [-1.0, 300.0, 100.3])
def test_zero_points_that_no_byte_is_near_to_stay_in_float32(zero_point: float) -> None:
    ones = np.ones((2, 1), np.float32)
    points = model.ZeroPoints(np.full((2, 2), 15, np.uint8), ones, ones * np.float32(zero_point))
    assert model.with_whole_zero_points(points) is None
