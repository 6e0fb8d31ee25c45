"""A few made-up requests before the first real one: every kind of launch is compiled, and libraries
have made their handles.

In:  an engine that nobody uses yet. Out: the same, with nothing left of them: no block, no known
     prefix, no count. With kernels in Triton's cache it takes a fraction of a second; without, what
     it takes here no request waits for later.
"""

from __future__ import annotations

from naiad.llm.engine import Engine
from naiad.llm.engine_statistics import EngineStatistics
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters

PROMPT_TOKENS = (200, 5, 40, 100, 1100, 2100)
"""One alone, then one beside every size of products (gemm_plan.py), then two with attention's
larger tiles (prompt_attention.py): small models have captured steps of up to 2048 tokens
(prompt_graphs.py), whose tiles are the smaller ones."""
NUM_OUT = 2 * len(PROMPT_TOKENS)
"""So that the first ones still generate when the last one comes."""


def warm_up(engine: Engine) -> None:
    scheduler = engine.scheduler
    parameters = SamplingParameters(max_tokens=NUM_OUT, ignore_eos=True, seed=0)
    for number, count in enumerate(PROMPT_TOKENS):
        if count + NUM_OUT < engine.builder.max_model_len:
            prompt = [(number + at) % engine.builder.vocab_size for at in range(count)]
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
