"""Captured decode steps: one graph per batch size of a ladder, forward pass and sampler together, all in one memory pool.

In:  a StepPlan of one-token rows. Out: logits and sampled tokens, or None when the plan does not fit and must be launched kernel by kernel.
Rule: a graph reads its inputs at fixed places only (StepStager.stage_single) and is captured with padding rows alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
from torch import Tensor

from naiad.llm.kv_cache import KvCache
from naiad.llm.runner import Model, Sampler
from naiad.llm.step_input import StepInput
from naiad.llm.step_stager import StepStager
from naiad.llm.token_scheduler import StepPlan


def ladder(max_num_seqs: int) -> list[int]:
    """Fine where a padded row costs most."""
    sizes = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class GraphLadder:
    @torch.inference_mode()
    def __init__(self, model: Model, sampler: Sampler, cache: KvCache, stager: StepStager, sizes: list[int]) -> None:
        self._stager = stager
        self._sizes = sizes
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        pool = None
        for size in reversed(sizes):
            graph, logits, sampled = _capture(model, sampler, cache, stager.single_step(size), pool)
            pool = pool or graph.pool()
            self._graphs[size] = (graph, logits, sampled)
        torch.cuda.synchronize()

    def run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor] | None:
        count = len(plan.rows)
        if count != plan.num_single or count > self._sizes[-1] or not all(row.is_sampled for row in plan.rows):
            return None
        size = self._sizes[bisect_left(self._sizes, count)]
        self._stager.stage_single(plan, size, mask_rows)
        graph, logits, sampled = self._graphs[size]
        graph.replay()
        return logits, sampled


def _capture(model: Model, sampler: Sampler, cache: KvCache, step: StepInput, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
    """Run once uncaptured first: libraries make their handles and kernels are compiled outside of the graph."""
    _forward(model, sampler, cache, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        logits, sampled = _forward(model, sampler, cache, step)
    return graph, logits, sampled


def _forward(model: Model, sampler: Sampler, cache: KvCache, step: StepInput) -> tuple[Tensor, Tensor]:
    logits = model.forward(step, cache)
    assert step.sample_slots is not None
    assert step.sample_positions is not None
    assert step.mask_rows is not None
    return logits, sampler.sample(logits, step.sample_slots, step.sample_positions, step.mask_rows)
