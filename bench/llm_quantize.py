"""Quantizes a checkpoint of a large model's shape, and measures how long engines take to start.

    python -m bench.llm_quantize --folder /tmp/checkpoints [--model llama-3.1-8b]
        [--qformat int4_awq --qformat fp8] [--device cuda]

Writes a checkpoint with random weights into --folder, quantizes it into each format, and starts an
engine from each checkpoint, twice: the second start finds compiled kernels and files in the
system's cache.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from bench.llm_shapes import SHAPES
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from naiad.tools.quantize.job import QuantizeJob
from naiad.tools.quantize.options import QuantizeOptions
from naiad.tools.quantize.samples import LayerSamples


def write_checkpoint(folder: Path, shape: dict[str, Any], device: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape | {"dtype": "bfloat16"}))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = torch.Generator(device=device).manual_seed(1)

    def draw(*size: int) -> torch.Tensor:
        out = torch.empty(size, device=device, dtype=torch.bfloat16)
        return out.normal_(0.0, 0.02, generator=generator).cpu()

    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head_dim = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    queries = shape["num_attention_heads"] * head_dim
    keys = shape["num_key_value_heads"] * head_dim
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors = {
            "self_attn.q_proj.weight": draw(queries, hidden),
            "self_attn.k_proj.weight": draw(keys, hidden),
            "self_attn.v_proj.weight": draw(keys, hidden),
            "self_attn.o_proj.weight": draw(hidden, queries),
            "mlp.gate_proj.weight": draw(inner, hidden),
            "mlp.up_proj.weight": draw(inner, hidden),
            "mlp.down_proj.weight": draw(hidden, inner),
            "input_layernorm.weight": ones.clone(),
            "post_attention_layernorm.weight": ones.clone(),
        }
        save_file(
            {prefix + name: tensor for name, tensor in tensors.items()},
            folder / f"model-{layer:05}.safetensors",
            metadata={"format": "pt"},
        )
    outer = {
        "model.embed_tokens.weight": draw(shape["vocab_size"], hidden),
        "model.norm.weight": ones,
    }
    if not shape.get("tie_word_embeddings"):
        outer["lm_head.weight"] = draw(shape["vocab_size"], hidden)
    save_file(outer, folder / "model-outer.safetensors", metadata={"format": "pt"})


class RoundingJob(QuantizeJob):
    """Rounds to nearest, whatever the format: for checkpoints of which only the start counts."""

    def _calibrate(self, layer: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, LayerSamples]:
        return hidden, LayerSamples(has_hessian=False)


def start_seconds(folder: Path, device: str) -> float:
    started = time.monotonic()
    engine = load_engine(folder, EngineSettings(device=device))
    seconds = time.monotonic() - started
    del engine
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", default="llama-3.1-8b", choices=sorted(SHAPES))
    parser.add_argument("--qformat", action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--round", action="store_true", help="round to nearest, for start times")
    arguments = parser.parse_args()
    plain = arguments.folder / arguments.model
    started = time.monotonic()
    write_checkpoint(plain, SHAPES[arguments.model], arguments.device)
    print(f"checkpoint written in {time.monotonic() - started:.0f} s", flush=True)
    folders = [plain]
    for qformat in arguments.qformat or ["int4_awq", "fp8"]:
        output = arguments.folder / f"{arguments.model}-{qformat}"
        options = QuantizeOptions(
            model_dir=plain, output_dir=output, qformat=qformat, device=arguments.device
        )
        outcome = (RoundingJob if arguments.round else QuantizeJob)(options).run()
        print(f"{qformat}: quantized in {outcome.seconds:.0f} s", flush=True)
        folders.append(output)
    for folder in folders:
        first, second = (start_seconds(folder, arguments.device) for _ in range(2))
        print(f"{folder.name}: starts in {first:.1f} s, then {second:.1f} s", flush=True)


if __name__ == "__main__":
    main()
