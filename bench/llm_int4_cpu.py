"""What int4 weights gain on a CPU: tokens per second of one request, 16 bits and int4, in turns.

In:  names of shapes. Out: a line per turn and shape, and the median ratio. The goal is 1.5.
Use: `python -m bench.llm_int4_cpu [--turns 3] [--only tinyllama-1.1b]`. The weights are random, the
     matrices are rounded at load (`quantization: int4`, groups of 128).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path

from bench.llm_checkpoints import write_checkpoint
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.load import load_engine

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
NUM_ROUNDS = 4
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPES: dict[str, dict[str, object]] = {
    "tinyllama-1.1b": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def tokens_per_second(folder: Path, quantization: str) -> float:
    """Returns the median of several rounds, without the first."""
    settings = EngineSettings(
        device="cpu", max_num_seqs=1, max_model_len=512, num_kv_blocks=64,
        enable_prefix_caching=False, max_num_batched_tokens=256, load_format="dummy",
        quantization=quantization,
    )  # fmt: skip
    engine = load_engine(folder, settings)
    rates = []
    for number in range(NUM_ROUNDS + 1):
        engine.submit(
            GenerationRequest(
                id=str(number),
                prompt=[(7 * index + 11) % 1000 for index in range(PROMPT_TOKENS)],
                parameters=SamplingParameters(
                    temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True
                ),
                should_detokenize=False,
            )
        )
        times_s = []
        while engine.has_work:
            if engine.step():
                times_s.append(time.perf_counter())
        rates.append((len(times_s) - 1) / (times_s[-1] - times_s[0]))
    del engine
    gc.collect()
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=SHAPES)
    options = parser.parse_args()
    for name in [options.only] if options.only else list(SHAPES):
        ratios = []
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = write_checkpoint(Path(folder) / name, {**LLAMA, **SHAPES[name]})
            for _ in range(options.turns):
                wide = tokens_per_second(checkpoint, "auto")
                narrow = tokens_per_second(checkpoint, "int4")
                ratios.append(narrow / wide)
                print(
                    f"{name}: 16 bits {wide:.1f} tokens/s, int4 {narrow:.1f}, {ratios[-1]:.2f}x",
                    flush=True,
                )
        print(f"{name}: median {statistics.median(ratios):.2f}x (goal: 1.5x)", flush=True)


if __name__ == "__main__":
    main()
