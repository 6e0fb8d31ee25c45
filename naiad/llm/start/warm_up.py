"""Runs a few synthetic requests before the first real one, so that every kind of launch is compiled
and libraries have created their handles.

In:  an unused engine. Out: the same engine, without any trace of these requests: no block, no known
     prefix, no count. This takes a fraction of a second if the kernels are in Triton's cache. If
     not, no request has to wait for their compilation later.
"""

from __future__ import annotations

from naiad.llm.engine import Engine
from naiad.llm.engine_statistics import EngineStatistics
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters

PROMPT_TOKENS = (200, 5, 40, 100, 1100, 2100)
"""One prompt alone, then one for every size of products (gemm_plan.py), then two for the larger
tiles of the attention (prompt_attention.py). Small models have captured steps of up to 2048 tokens
(prompt_graphs.py), which use the smaller tiles."""
NUM_OUT = 2 * len(PROMPT_TOKENS)
"""Output tokens per request; enough that the first requests still generate when the last one
arrives."""


def warm_up(engine: Engine) -> None:
    scheduler = engine.scheduler
    parameters = SamplingParameters(max_tokens=NUM_OUT, ignore_eos=True, seed=0)
    for number, count in enumerate(PROMPT_TOKENS):
        if count + NUM_OUT < engine.builder.max_model_len:
            prompt = [(number + offset) % engine.builder.vocab_size for offset in range(count)]
            engine.submit(
                GenerationRequest(
                    id=f"warm-up {number}",
                    prompt=prompt,
                    parameters=parameters,
                    should_detokenize=False,
                )
            )
            engine.step()
            while len(scheduler.waiting):
                engine.step()
    while engine.has_work:
        engine.step()
    scheduler.pool.forget_all()
    scheduler.num_prefix_queries = scheduler.num_prefix_hits = scheduler.num_preemptions = 0
    engine.statistics = EngineStatistics()
