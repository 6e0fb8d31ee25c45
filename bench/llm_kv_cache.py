"""Measures decoding at long contexts with the KV cache in 16 bits and in fp8, random weights.

    python -m bench.llm_kv_cache [--model llama-3.1-8b] [--batch 16] [--context 8192 ...]
    python -m bench.llm_kv_cache --device cpu
        Tries the script with a tiny shape.

Prints the tokens per second of a full batch whose sequences all have the context, the median of the
steps, and how many tokens fit into the cache.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

import torch

from bench.llm_offline import OfflineBench
from bench.llm_shapes import SHAPES
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters

NUM_STEPS = 48


def step_seconds(engine: Engine, batch: int, context: int) -> float:
    """Returns the median time of the steps in which every sequence generates."""
    vocabulary = engine.builder.vocab_size
    # The first sequences generate while the others' prompts are computed.
    parameters = SamplingParameters(temperature=0.0, max_tokens=3 * NUM_STEPS, ignore_eos=True)
    for number in range(batch):
        prompt = [(7 * index + 13 * number + 11) % vocabulary for index in range(context)]
        engine.submit(
            GenerationRequest(
                id=f"{context}-{number}", prompt=prompt, parameters=parameters,
                should_detokenize=False,
            )
        )  # fmt: skip
    times: list[float] = []
    while engine.has_work and len(times) < NUM_STEPS:
        started = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == batch:
            times.append(time.perf_counter() - started)
    for number in range(batch):
        engine.cancel(f"{context}-{number}")
    while engine.has_work:
        engine.step()
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="", choices=["", *sorted(SHAPES)])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, action="append", default=[])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--kv-cache-dtype", action="append", choices=["auto", "fp8"], default=[])
    arguments = parser.parse_args()
    is_gpu = arguments.device == "cuda"
    model = arguments.model or ("llama-3.1-8b" if is_gpu else "tiny")
    contexts = arguments.context or ([8192, 32768] if is_gpu else [64])
    extra: dict[str, Any] = {} if is_gpu else {"kv_cache_bytes": 1 << 24}
    for kv_cache_dtype in arguments.kv_cache_dtype or (["auto", "fp8"] if is_gpu else ["auto"]):
        settings = EngineSettings(
            device=arguments.device,
            max_num_seqs=arguments.batch,
            max_model_len=max(contexts) + 4 * NUM_STEPS,
            enable_prefix_caching=False,
            max_request_share=1.0,
            kv_cache_dtype=kv_cache_dtype,
            **extra,
        )
        engine = OfflineBench(model, settings).engine
        capacity = engine.scheduler.pool.capacity * settings.block_size
        print(f"KV cache {kv_cache_dtype}: room for {capacity:,} tokens", flush=True)
        for context in contexts:
            seconds = step_seconds(engine, arguments.batch, context)
            rate = arguments.batch / seconds
            line = f"  batch {arguments.batch}, context {context}: {rate:,.0f} tokens per second"
            print(f"{line}, {1e3 * seconds:.2f} ms per step", flush=True)
        del engine
        gc.collect()
        if is_gpu:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
