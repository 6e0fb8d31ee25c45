"""Measures the time to load an 8B checkpoint from local disk in a new process.

python bench/llm_start.py write DIR
    Writes a checkpoint with the shape of Llama-3.1-8B and random weights, 16 GB in four files.
python bench/llm_start.py load DIR
    Measures the time to load it. Run it twice: the first run also compiles the kernels.
"""

from __future__ import annotations

import sys
import time

STARTED = time.monotonic()

import json
from pathlib import Path

import torch

from bench.llm_shapes import SHAPES
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.load import load_engine

NUM_FILES = 4


def write(folder: Path) -> None:
    from safetensors.torch import save_file

    shape = SHAPES["llama-3.1-8b"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    hidden, inner, layers, vocab = (
        int(str(shape[key]))
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, size in (
            ("q_proj", hidden),
            ("k_proj", hidden // 4),
            ("v_proj", hidden // 4),
            ("o_proj", hidden),
        ):
            shapes[f"{prefix}self_attn.{name}.weight"] = (size, hidden)
        shapes |= {
            f"{prefix}mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")
        }
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {
            f"{prefix}{name}.weight": (hidden,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    names = sorted(shapes)
    weight_map: dict[str, str] = {}
    for part in range(NUM_FILES):
        file = f"model-{part + 1:05}-of-{NUM_FILES:05}.safetensors"
        mine = names[part::NUM_FILES]
        save_file(
            {
                name: torch.randn(shapes[name], device="cuda", dtype=torch.bfloat16)
                .mul_(0.02)
                .cpu()
                for name in mine
            },
            folder / file,
        )
        weight_map |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def load(folder: Path) -> None:
    imported_s = time.monotonic() - STARTED
    marks: list[float] = []
    engine = load_engine(
        folder,
        EngineSettings(device="cuda", max_model_len=8192),
        lambda done, of: marks.append(time.monotonic() - STARTED),
    )
    ready_s = time.monotonic() - STARTED
    for _ in engine.run(
        [GenerationRequest(id="a", prompt=[1, 2, 3], parameters=SamplingParameters(max_tokens=2))]
    ):
        pass
    print(
        f"imports {imported_s:.1f} s, weights at {marks[-1]:.1f} s, ready at {ready_s:.1f} s, "
        f"first response at {time.monotonic() - STARTED:.1f} s after the start of the process"
    )


if __name__ == "__main__":
    {"write": write, "load": load}[sys.argv[1]](Path(sys.argv[2]))
