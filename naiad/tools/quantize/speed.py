"""Measures how many tokens per second the native engine makes of a checkpoint, one request at a
time."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch

from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.load import load_engine

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
NUM_ROUNDS = 3


def tokens_per_second(folder: Path, device: str) -> float:
    """Returns the best of several rounds. Raises NaiadError if the engine cannot serve it."""
    settings = EngineSettings(
        device=device, max_num_seqs=1, max_model_len=2 * (PROMPT_TOKENS + OUTPUT_TOKENS),
        num_kv_blocks=32, enable_prefix_caching=False, max_num_batched_tokens=256,
    )  # fmt: skip
    engine = load_engine(folder, settings)
    seconds = min(_generate(engine, str(index)) for index in range(NUM_ROUNDS + 1))
    del engine
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return OUTPUT_TOKENS / seconds


def _generate(engine: Engine, name: str) -> float:
    """Returns the seconds from the first token to the last, scaled to all tokens."""
    vocabulary = engine.builder.vocab_size
    engine.submit(
        GenerationRequest(
            id=name,
            prompt=[(7 * index + 11) % vocabulary for index in range(PROMPT_TOKENS)],
            parameters=SamplingParameters(
                temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True
            ),
            should_detokenize=False,
        )
    )
    first_s = last_s = 0.0
    while engine.has_work:
        if engine.step():
            last_s = time.perf_counter()
            first_s = first_s or last_s
    return (last_s - first_s) * OUTPUT_TOKENS / (OUTPUT_TOKENS - 1)
