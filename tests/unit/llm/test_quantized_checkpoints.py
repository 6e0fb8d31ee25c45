"""Every quantized format is served as what it stands for, on the CPU: the engine's logprobs are
near those of the dequantized model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
from safetensors.torch import load_file, save_file

from naiad.errors import NaiadError
from naiad.llm.models.decoder import Decoder
from naiad.llm.models.packed_integers import PackedInt4Linear, PackedInt8Linear
from naiad.llm.models.quantized_linear import PartedLinear
from naiad.llm.quantization.matrix import WeightKind
from tests.unit.llm import quantized
from tests.unit.llm.checkpoints import VOCAB, save_model
from tests.unit.llm.engines import request, run, small_engine

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPTQ = {"quant_method": "gptq", "group_size": 64}
FORMATS: dict[str, tuple[dict[str, Any], quantized.Writer]] = {
    "awq-128": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
        quantized.awq_writer(128, False),
    ),
    "awq-64-symmetric": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False},
        quantized.awq_writer(64, True),
    ),
    "awq-32": (
        {"quant_method": "awq", "bits": 4, "group_size": 32},
        quantized.awq_writer(32, False),
    ),
    "gptq-4": ({**GPTQ, "bits": 4, "desc_act": False}, quantized.gptq_writer(4, 64, True, False)),
    "gptq-4-asymmetric": (
        {**GPTQ, "bits": 4, "sym": False},
        quantized.gptq_writer(4, 64, False, False),
    ),
    "gptq-4-act-order": (
        {**GPTQ, "bits": 4, "desc_act": True},
        quantized.gptq_writer(4, 64, False, True),
    ),
    "gptq-v2": (
        {**GPTQ, "bits": 4, "checkpoint_format": "gptq_v2"},
        quantized.gptq_writer(4, 64, False, False, 0),
    ),
    "gptq-8": ({**GPTQ, "bits": 8}, quantized.gptq_writer(8, 64, True, False)),
    "gptq-8-act-order": (
        {**GPTQ, "bits": 8, "desc_act": True},
        quantized.gptq_writer(8, 64, True, True),
    ),
    "w4a16": (
        quantized.compressed_config(WeightKind.INT4, 128, True),
        quantized.compressed_writer(WeightKind.INT4, 128, True),
    ),
    "w4a16-asymmetric": (
        quantized.compressed_config(WeightKind.INT4, 32, False),
        quantized.compressed_writer(WeightKind.INT4, 32, False),
    ),
    "w8a16": (
        quantized.compressed_config(WeightKind.INT8, 0, True),
        quantized.compressed_writer(WeightKind.INT8, 0, True),
    ),
    "fp8-dynamic": (
        quantized.compressed_config(WeightKind.FP8, 0, True),
        quantized.compressed_writer(WeightKind.FP8, 0, True),
    ),
    "fp8-blocks": (
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        quantized.block_writer(64),
    ),
    "fp8-static": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        quantized.tensor_fp8_writer(True),
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        quantized.tensor_fp8_writer(True),
    ),
}
PROMPTS = [[5, 6, 7], list(range(3, 45)), [9] * 17]


def save_plain(folder: Path) -> Any:
    return save_model(transformers.LlamaConfig(**SHAPE), folder)


def logprobs(folder: Path, **values: Any) -> list[Any]:
    engine = small_engine(folder, dtype="auto", **values)
    done = run(
        engine,
        [request(str(i), prompt, max_tokens=1, logprobs=5) for i, prompt in enumerate(PROMPTS)],
    )
    return [done[(str(i), 0)].logprobs[0] for i in range(len(PROMPTS))]


@torch.inference_mode()
def check_near(model: Any, found: list[Any], tolerance: float) -> None:
    for prompt, entry in zip(PROMPTS, found, strict=True):
        expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].float(), dim=-1)
        for token, value in entry.top:
            assert abs(value - float(expected[token])) < tolerance


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_is_served_as_what_it_stands_for(name: str, tmp_path: Path) -> None:
    """Activations are rounded to bfloat16 by the integer kernels, so logprobs differ by a
    little."""
    model = save_plain(tmp_path)
    config, writer = FORMATS[name]
    state = quantized.quantize_folder(tmp_path, config, writer)
    check_near(quantized.plain_model(model, state), logprobs(tmp_path), 0.25)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("awq-128", PackedInt4Linear),
        ("gptq-4-act-order", PackedInt4Linear),
        ("w8a16", PackedInt8Linear),
    ],
)
def test_integers_stay_packed_on_a_cpu(name: str, kind: type[Any], tmp_path: Path) -> None:
    save_plain(tmp_path)
    quantized.quantize_folder(tmp_path, *FORMATS[name])
    engine = small_engine(tmp_path, dtype="auto")
    assert isinstance(engine.runner.model, Decoder)
    for layer in engine.runner.model.weights.layers:
        assert all(
            isinstance(linear, kind) for linear in (layer.qkv, layer.o, layer.up, layer.down)
        )
    assert "8 matrices" in engine.quantization


@pytest.mark.parametrize("name", ["awq-128", "w4a16-asymmetric", "fp8-dynamic", "gptq-8"])
def test_modules_that_were_left_out_stay_as_they_are(name: str, tmp_path: Path) -> None:
    """k_proj and down_proj: one of a merged matrix, and one alone."""
    model = save_plain(tmp_path)
    config, writer = FORMATS[name]
    state = quantized.quantize_folder(
        tmp_path, config, writer, ("lm_head", "k_proj", "0.mlp.down_proj")
    )
    engine = small_engine(tmp_path, dtype="auto")
    assert isinstance(engine.runner.model, Decoder)
    assert isinstance(engine.runner.model.weights.layers[0].qkv, PartedLinear)
    check_near(quantized.plain_model(model, state), logprobs(tmp_path), 0.25)


@pytest.mark.parametrize("name", ["w4a16", "w8a16", "fp8-dynamic"])
def test_a_quantized_head_is_read(name: str, tmp_path: Path) -> None:
    model = save_plain(tmp_path)
    state = quantized.quantize_folder(tmp_path, *FORMATS[name], ignore=())
    check_near(quantized.plain_model(model, state), logprobs(tmp_path), 0.25)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["w4a16", "w4a16-asymmetric", "w8a16", "fp8-dynamic"])
def test_compressed_tensors_reads_the_same_numbers(name: str, tmp_path: Path) -> None:
    """The library that defines the format is the oracle: transformers loads the checkpoint through
    it."""
    pytest.importorskip("compressed_tensors", reason="the oracle: pip install compressed-tensors")
    save_plain(tmp_path)
    state = quantized.quantize_folder(tmp_path, *FORMATS[name])
    quantization = transformers.CompressedTensorsConfig(run_compressed=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=quantization, dtype=torch.float32
    )
    for module in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        weight = loaded.get_submodule(module).weight
        torch.testing.assert_close(
            weight.float(), state[f"{module}.weight"].float(), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_a_plain_checkpoint_is_quantized_at_load(kind: str, tmp_path: Path) -> None:
    model = save_plain(tmp_path)
    found = logprobs(tmp_path, quantization=kind)
    check_near(model, found, 6.0)
    assert "rounded at load" in small_engine(tmp_path, dtype="auto", quantization=kind).quantization


def broken(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    for name, tensor in change.items():
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    save_file(state, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model.layers.0.mlp.up_proj.scales": torch.ones(3, 256)},
            r"up_proj.scales' has shape \[3, 256\], expected \[1, 256\]",
        ),
        (
            {"model.layers.1.mlp.down_proj.qzeros": None},
            r"no tensor 'model.layers.1.mlp.down_proj.qzeros'",
        ),
        ({"model.layers.0.mlp.up_proj.scales": torch.full((1, 256), float("nan"))}, "not finite"),
        (
            {"model.layers.0.mlp.up_proj.qweight": torch.zeros(64, 32, dtype=torch.int32)},
            "groups of 128 do not divide",
        ),
        (
            {"model.layers.0.mlp.up_proj.qweight": torch.zeros(256, 32, dtype=torch.int32)},
            "up_proj",
        ),
    ],
    ids=["scales", "missing", "nan", "group", "inputs"],
)
def test_a_broken_checkpoint_is_refused_with_its_tensor(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_plain(tmp_path)
    quantized.quantize_folder(tmp_path, *FORMATS["awq-128"])
    broken(tmp_path, change)
    with pytest.raises(NaiadError, match=message):
        small_engine(tmp_path)


def test_a_truncated_shard_is_refused_by_name(tmp_path: Path) -> None:
    save_plain(tmp_path)
    quantized.quantize_folder(tmp_path, *FORMATS["awq-128"])
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(NaiadError, match=r"model.safetensors"):
        small_engine(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'.*naiad quantize"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "layout 'gemv'"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
            "config_groups",
        ),
    ],
    ids=lambda value: str(value.get("quant_method")) if isinstance(value, dict) else None,
)
def test_what_has_no_kernel_is_refused_with_the_nearest_thing(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_plain(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    with pytest.raises(NaiadError, match=message):
        small_engine(tmp_path)


def test_a_setting_that_contradicts_the_checkpoint_is_refused(tmp_path: Path) -> None:
    save_plain(tmp_path)
    with pytest.raises(NaiadError, match="no quantization_config"):
        small_engine(tmp_path, quantization="awq")
    quantized.quantize_folder(tmp_path, *FORMATS["awq-128"])
    with pytest.raises(NaiadError, match="quantized already"):
        small_engine(tmp_path, quantization="fp8")
    small_engine(tmp_path, quantization="awq")


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "FP8"])
def test_tensorrt_llms_own_checkpoints_are_served(algorithm: str, tmp_path: Path) -> None:
    """With factors for the inputs of two matrices, one of which moves into the matrix before."""
    torch.manual_seed(5)
    model = save_plain(tmp_path)
    state = quantized.tensorrt_llm_folder(tmp_path, algorithm)
    check_near(quantized.plain_model(model, state), logprobs(tmp_path), 0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "T5"}, "architecture 'T5'"),
        ({"mapping": {"world_size": 2}}, "has 2 ranks and a tp_size of 1"),
        ({"quantization": {"quant_algo": "W4A8_AWQ"}}, "'W4A8_AWQ' of TensorRT-LLM"),
    ],
    ids=str,
)
def test_other_checkpoints_of_tensorrt_llm_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_plain(tmp_path)
    quantized.tensorrt_llm_folder(tmp_path, "FP8")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(NaiadError, match=message):
        small_engine(tmp_path)
