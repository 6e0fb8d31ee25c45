"""Tiny checkpoints quantized in every format, written to its layout, and the plain model that they
stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from naiad.llm.quantization import write
from naiad.llm.quantization.matrix import WeightKind
from naiad.llm.quantization.packing import pack
from naiad.llm.quantization.round_matrix import round_fp8, round_integers

Writer = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]
"""A module's name and weight -> its tensors, and the weight that they stand for."""


def quantize_folder(
    folder: Path, config: dict[str, Any], writer: Writer, ignore: tuple[str, ...] = ("lm_head",)
) -> dict[str, Tensor]:
    """Rewrites the checkpoint in `folder`; returns the state of the model that it stands for."""
    state = load_file(folder / "model.safetensors")
    stands_for, out = dict(state), {}
    for name, tensor in state.items():
        module = name.removesuffix(".weight")
        is_linear = name.endswith("_proj.weight") or module == "lm_head"
        if not is_linear or any(part in module for part in ignore):
            out[name] = tensor
            continue
        tensors, wide = writer(module, tensor.float())
        out.update(tensors)
        stands_for[name] = wide.to(tensor.dtype)
    save_file(
        {name: tensor.contiguous() for name, tensor in out.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    return stands_for


def plain_model(
    model: transformers.PreTrainedModel, state: dict[str, Tensor]
) -> transformers.PreTrainedModel:
    model.load_state_dict(state, strict=False)
    return model


def awq_writer(group: int, is_symmetric: bool) -> Writer:
    def run(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        matrix = round_integers(weight, WeightKind.INT4, group, is_symmetric)
        matrix.scales = matrix.scales.half().float()
        return write.awq(module, matrix), matrix.dequantize()

    return run


def compressed_writer(kind: WeightKind, group: int, is_symmetric: bool) -> Writer:
    def run(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        matrix = (
            round_fp8(weight)
            if kind is WeightKind.FP8
            else round_integers(weight, kind, group, is_symmetric)
        )
        return write.compressed_tensors(module, matrix, torch.float32), matrix.dequantize()

    return run


def gptq_writer(
    bits: int, group: int, is_symmetric: bool, is_ordered: bool, offset: int = 1
) -> Writer:
    """With act-order, inputs are put into groups by a made-up order, the same for all modules of as
    many inputs."""

    def run(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        kind, num_inputs = (WeightKind.INT4 if bits == 4 else WeightKind.INT8), weight.shape[1]
        generator = torch.Generator().manual_seed(num_inputs)
        order = (
            torch.randperm(num_inputs, generator=generator)
            if is_ordered
            else torch.arange(num_inputs)
        )
        matrix = round_integers(weight[:, order], kind, group, is_symmetric)
        matrix.scales = matrix.scales.half().float()
        matrix.order = order
        groups = torch.empty(num_inputs, dtype=torch.int32)
        groups[order] = (torch.arange(num_inputs) // group).to(torch.int32)
        values = torch.empty_like(matrix.values)
        values[:, order] = matrix.values
        zeros = (
            matrix.zeros
            if matrix.zeros is not None
            else torch.full_like(matrix.scales, 8 if bits == 4 else 128, dtype=torch.uint8)
        )
        stored = (zeros.to(torch.int32) - offset) & ((1 << bits) - 1)
        tensors = {
            f"{module}.qweight": pack(values.t().contiguous(), bits, 0),
            f"{module}.qzeros": pack(stored.t().contiguous(), bits, 1),
            f"{module}.scales": matrix.scales.t().contiguous().half(),
            f"{module}.g_idx": groups,
        }
        return tensors, matrix.dequantize()

    return run


def block_writer(block: int) -> Writer:
    def run(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = -(-weight.shape[0] // block), -(-weight.shape[1] // block)
        scales = torch.empty(rows, columns)
        values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        wide = torch.empty_like(weight)
        for row in range(rows):
            for column in range(columns):
                place = (
                    slice(row * block, (row + 1) * block),
                    slice(column * block, (column + 1) * block),
                )
                scales[row, column] = weight[place].abs().max() / 448.0
                values[place] = (weight[place] / scales[row, column]).to(torch.float8_e4m3fn)
                wide[place] = values[place].float() * scales[row, column]
        return {f"{module}.weight": values, f"{module}.weight_scale_inv": scales}, wide

    return run


def tensor_fp8_writer(has_input_scale: bool) -> Writer:
    """One scale per tensor, as modelopt and vLLM write it."""

    def run(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = weight.abs().max() / 448.0
        values = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {f"{module}.weight": values, f"{module}.weight_scale": scale.reshape(())}
        if has_input_scale:
            tensors[f"{module}.input_scale"] = torch.tensor(0.02)
        return tensors, values.float() * scale

    return run


def compressed_config(kind: WeightKind, group: int, is_symmetric: bool) -> dict[str, Any]:
    return write.compressed_tensors_config(kind, group, is_symmetric, False, ["lm_head"])


def tensorrt_llm_folder(folder: Path, algorithm: str, group: int = 64) -> dict[str, Tensor]:
    """A plain Llama in `folder` as TensorRT-LLM's quantizer writes it; returns the state of the
    model that it stands for."""
    state, raw = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    stands_for, out = (
        dict(state),
        {
            "transformer.vocab_embedding.weight": state["model.embed_tokens.weight"],
            "transformer.ln_f.weight": state["model.norm.weight"],
            "lm_head.weight": state["lm_head.weight"],
        },
    )
    modules = {
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.dense": ["self_attn.o_proj"],
        "mlp.fc": ["mlp.gate_proj"],
        "mlp.gate": ["mlp.up_proj"],
        "mlp.proj": ["mlp.down_proj"],
    }
    for layer in range(raw["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}.", f"transformer.layers.{layer}."
        out[f"{theirs}input_layernorm.weight"] = state[f"{ours}input_layernorm.weight"]
        out[f"{theirs}post_layernorm.weight"] = state[f"{ours}post_attention_layernorm.weight"]
        for name, parts in modules.items():
            weight = torch.cat([state[f"{ours}{part}.weight"] for part in parts]).float()
            tensors, wide = _tensorrt_llm_matrix(
                f"{theirs}{name}", weight, algorithm, group, name in ("attention.dense", "mlp.proj")
            )
            out |= tensors
            for part, piece in zip(
                parts,
                wide.split([state[f"{ours}{part}.weight"].shape[0] for part in parts]),
                strict=True,
            ):
                stands_for[f"{ours}{part}.weight"] = piece.contiguous()
    (folder / "model.safetensors").unlink()
    save_file(
        {name: tensor.contiguous() for name, tensor in out.items()}, folder / "rank0.safetensors"
    )
    config = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_hidden_layers": raw["num_hidden_layers"],
        "hidden_act": "silu",
        "num_attention_heads": raw["num_attention_heads"],
        "num_key_value_heads": raw["num_key_value_heads"],
        "head_size": raw["hidden_size"] // raw["num_attention_heads"],
        "norm_epsilon": raw["rms_norm_eps"],
        "max_position_embeddings": raw["max_position_embeddings"],
        "rotary_base": 10000.0,
        "mapping": {"world_size": 1, "tp_size": 1},
        "quantization": {
            "quant_algo": algorithm,
            "group_size": group,
            "has_zero_point": False,
            "exclude_modules": ["lm_head"],
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return stands_for


def _tensorrt_llm_matrix(
    module: str, weight: Tensor, algorithm: str, group: int, has_factor: bool
) -> tuple[dict[str, Tensor], Tensor]:
    if algorithm == "FP8":
        tensors, wide = tensor_fp8_writer(False)(module, weight)
        scale = tensors.pop(f"{module}.weight_scale")
        return tensors | {
            f"{module}.weights_scaling_factor": scale.reshape(1),
            f"{module}.activation_scaling_factor": torch.ones(1),
        }, wide
    factor = torch.rand(weight.shape[1]) + 0.5 if has_factor else torch.ones(weight.shape[1])
    matrix = round_integers(weight / factor, WeightKind.INT4, group, True)
    signed = (matrix.values.to(torch.int8) - 8) & 15
    tensors = {
        f"{module}.weight": (signed[0::2] | (signed[1::2] << 4)).to(torch.int8),
        f"{module}.weights_scaling_factor": matrix.scales,
    }
    if has_factor:
        tensors[f"{module}.prequant_scaling_factor"] = factor
    return tensors, matrix.dequantize() * factor
