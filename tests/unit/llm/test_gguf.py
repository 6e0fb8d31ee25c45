"""GGUF files: read whole, refused when damaged, dequantized as the format's own package does it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
gguf = pytest.importorskip(
    "gguf", reason="needs gguf, the format's reference package, to write test files"
)

import torch

from naiad.errors import NaiadError
from naiad.llm.checkpoint.dequantize import dequantize
from naiad.llm.checkpoint.gguf_config import LAYER, OUTER
from naiad.llm.checkpoint.gguf_file import BLOCKS, GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from tests.unit.llm import checkpoints, tokenizers_made
from tests.unit.llm.engines import request, run, small_engine

Kind = gguf.GGMLQuantizationType
QUANTIZABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_SCALES = {"Q4_K": (0, [0.004, 0.03]), "Q5_K": (0, [0.002, 0.031]), "Q6_K": (208, [0.0007])}
"""Where a block has its scales (of six-bit scales, then of minima), and which make values with a
deviation of about 1."""
VOCAB = 402


@pytest.mark.parametrize("kind", [entry[0] for entry in BLOCKS.values()])
def test_dequantized_values_are_the_formats_own(kind: str) -> None:
    rows, columns = 3, 512
    _, per_block, block_bytes = next(entry for entry in BLOCKS.values() if entry[0] == kind)
    source = np.random.default_rng(1)
    if kind in QUANTIZABLE:
        raw = gguf.quants.quantize(
            source.standard_normal((rows, columns)).astype(np.float32), Kind[kind]
        )
    else:
        # The package only reads these types. Any bytes are blocks, but their two scales must be
        # finite numbers.
        raw = source.integers(0, 256, (rows, columns // per_block, block_bytes), np.uint8)
        scales = (
            source.standard_normal((rows, columns // per_block, 2))
            .astype(np.float16)
            .view(np.uint8)
        )
        where = slice(208, 210) if kind == "Q6_K" else slice(0, 4)
        raw[:, :, where] = scales[:, :, : where.stop - where.start]
        raw = raw.reshape(rows, -1)
    expected = gguf.quants.dequantize(raw, Kind[kind])
    found = dequantize(
        kind, memoryview(np.ascontiguousarray(raw).view(np.uint8).tobytes()), (rows, columns)
    )
    np.testing.assert_allclose(found, expected.reshape(rows, columns), rtol=1e-6, atol=1e-6)


def permute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """As the converter stores llama's query and key rows."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def quantize(values: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The package only reads the K types: for these the values are random ones of about the same
    size."""
    if kind not in K_SCALES:
        return gguf.quants.quantize(values, Kind[kind])
    _, per_block, block_bytes = next(entry for entry in BLOCKS.values() if entry[0] == kind)
    source = np.random.default_rng(values.size)
    raw = source.integers(
        0, 256, (values.shape[0], values.shape[1] // per_block, block_bytes), np.uint8
    )
    start, sizes = K_SCALES[kind]
    wanted = (
        np.array(sizes)
        * float(values.std())
        * source.uniform(0.7, 1.3, (*raw.shape[:2], len(sizes)))
    )
    raw[:, :, start : start + 2 * len(sizes)] = wanted.astype(np.float16).view(np.uint8)
    return raw.reshape(values.shape[0], -1)


def write_gguf(path: Path, model: Any, architecture: str, kinds: list[str]) -> None:
    """The model's weights become what the file holds, so that transformers computes with the
    rounded ones."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
    add_tokenizer(writer)
    names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in OUTER.items()}
    for layer in range(config.num_hidden_layers):
        for kind in ("weight", "bias"):
            names |= {
                f"model.layers.{layer}.{ours}.{kind}": f"blk.{layer}.{theirs}.{kind}"
                for ours, theirs in LAYER.items()
            }
    for index, (name, parameter) in enumerate(model.named_parameters()):
        values = parameter.detach().numpy()
        is_rotated = architecture == "llama" and (".q_proj." in name or ".k_proj." in name)
        num_heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        stored = permute(values, num_heads) if is_rotated else values
        kind = kinds[index % len(kinds)] if values.ndim == 2 else "F32"
        raw = quantize(np.ascontiguousarray(stored), kind)
        writer.add_tensor(names[name], raw, raw_dtype=Kind[kind])
        rounded = gguf.quants.dequantize(raw, Kind[kind]).reshape(values.shape)
        if is_rotated:
            pairs = rounded.reshape(
                num_heads, rounded.shape[0] // num_heads // 2, 2, *rounded.shape[1:]
            )
            rounded = pairs.swapaxes(1, 2).reshape(values.shape)
        parameter.data = torch.from_numpy(rounded.astype(np.float32).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any) -> None:
    made = tokenizers_made.byte_level(400)
    vocabulary = sorted(made.get_vocab().items(), key=lambda item: item[1])
    merges = [
        " ".join(merge) if isinstance(merge, list) else merge
        for merge in json.loads(made.to_str())["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([word for word, _ in vocabulary])
    writer.add_token_types(
        [3 if word == "<|end|>" else 4 if word == "<tool>" else 1 for word, _ in vocabulary]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(made.token_to_id("<|end|>"))


def tiny(kind: str, **values: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        **checkpoints.COMMON
        | {"vocab_size": VOCAB, "intermediate_size": 96, "num_key_value_heads": 2, **values}
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.25) if parameter.dim() > 1 else parameter.data.uniform_(
            0.5, 1.5
        )
    return model


@pytest.mark.parametrize(
    ("kind", "architecture"), [("Llama", "llama"), ("Qwen2", "qwen2"), ("Qwen3", "qwen3")]
)
@pytest.mark.parametrize("kinds", [["Q4_1", "Q8_0"], ["F16", "Q5_0", "BF16"]], ids=str)
def test_tokens_equal_transformers_on_the_rounded_weights(
    kind: str, architecture: str, kinds: list[str], tmp_path: Path
) -> None:
    model = tiny(
        kind, **({"head_dim": 32} if kind == "Qwen3" else {}), tie_word_embeddings=kind == "Qwen3"
    )
    path = tmp_path / "model.gguf"
    write_gguf(path, model, architecture, kinds)
    engine = small_engine(path, num_kv_blocks=60)
    texts = ["The quick brown fox", "東京タワー", "numbers 12345<tool>"]
    completions = run(
        engine,
        [request(str(i), text, max_tokens=16, ignore_eos=True) for i, text in enumerate(texts)],
    )
    assert engine.builder.tokenizer is not None
    for index, text in enumerate(texts):
        prompt = engine.builder.tokenizer.encode(text)
        assert engine.builder.tokenizer.decode(prompt) == text
        checkpoints.check_greedy(model, prompt, completions[(str(index), 0)].tokens)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, tiny("Llama"), "llama", ["Q8_0"])
    return path.read_bytes()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_is_refused_and_nothing_else(
    data: st.DataObject, whole: bytes, tmp_path: Path
) -> None:
    """Cut anywhere, or with bytes of the header changed: an error of ours, or a file that still
    reads; never a crash."""
    damaged = bytearray(whole)
    header = whole.index(b"token_embd.weight") + 200
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    try:
        file = GgufFile(path)
        for tensor in file.tensors.values():
            assert len(file.raw(tensor)) == tensor.num_bytes
    except NaiadError:
        pass


@pytest.mark.parametrize("element", [0, 8])
def test_a_header_of_a_hundred_million_values_is_refused_before_it_is_read(
    element: int, tmp_path: Path
) -> None:
    """The file is sparse: an array of so many bytes, or of empty strings."""
    count = 100 << 20
    path = tmp_path / "large.gguf"
    key = struct.pack("<Q", 1) + b"k"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IIQ", 9, element, count)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + count * 8)
    with pytest.raises(NaiadError, match="has more than 16777216 values"):
        GgufFile(path)


def test_a_header_of_one_long_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    key = struct.pack("<Q", 1) + b"k"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
        file.write(struct.pack("<IQ", 8, 1 << 30))
        file.truncate(2 << 30)
    with pytest.raises(NaiadError, match="has more than 512 MiB"):
        GgufFile(path)


def test_other_architectures_and_tokenizers_are_named(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(
        whole.replace(
            b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00mamba"
        )
    )
    with pytest.raises(NaiadError, match="architecture 'mamba'"):
        small_engine(path)
    with pytest.raises(NaiadError, match="pre-tokenizer is 'strange'"):
        build_tokenizer(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.tokens": ["a"],
                "tokenizer.ggml.pre": "strange",
            }
        )
    with pytest.raises(NaiadError, match="tokenizer is 'bert'"):
        build_tokenizer({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]})


def test_sentence_piece_merges_follow_the_scores() -> None:
    words = ["<unk>", "<s>", "</s>", "▁", "t", "h", "e", "he", "▁t", "▁the", "th"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -8.0]
    tokenizer = build_tokenizer(
        {
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": [2, 3, 3] + [1] * 8, "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )  # fmt: skip
    assert tokenizer.encode("the the") == [1, words.index("▁the"), words.index("▁the")]
    assert tokenizer.decode(tokenizer.encode("the the")) == "the the"
    assert tokenizer.eos_token_ids == [2]


@pytest.mark.skipif(
    "NAIAD_SMOLLM2_GGUF" not in os.environ,
    reason="NAIAD_SMOLLM2_GGUF does not name SmolLM2-135M-Instruct.Q4_1.gguf",
)
def test_smollm2_equals_transformers_dequantized() -> None:
    path = Path(os.environ["NAIAD_SMOLLM2_GGUF"])
    engine = small_engine(path, max_num_batched_tokens=64, block_size=16, num_kv_blocks=64)
    text = (
        "<|im_start|>user\nName three rivers of Europe, please. "
        "2024!<|im_end|>\n<|im_start|>assistant\n"
    )
    completion = run(engine, [request("a", text, max_tokens=40)])[("a", 0)]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert engine.builder.tokenizer is not None
    prompt = engine.builder.tokenizer.encode(text)
    assert prompt == tokenizer(text).input_ids
    checkpoints.check_greedy(model, prompt, completion.tokens)
