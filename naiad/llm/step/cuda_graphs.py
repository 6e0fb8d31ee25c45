"""Captured decode steps: one graph per batch size of a ladder (two where the attention's tile
depends on the sequences' lengths), forward pass and sampler together, all in one memory pool.

In:  a StepPlan of one-token rows. Out: logits and sampled tokens, or None if the plan does not fit
     and must be launched kernel by kernel.
Rule: a graph reads its inputs only at fixed addresses (StepStager.stage_single) and is captured
      with padding rows alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from naiad.llm.step.batch_ladder import MAX_ROWS_ONE_WAY, kinds
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.runner import Model, Sampler, sample_step
from naiad.llm.step.step_input import StepInput
from naiad.llm.step.step_stager import StepStager
from naiad.llm.token_scheduler import StepPlan

Result = TypeVar("Result")


class GraphLadder:
    @torch.inference_mode()
    def __init__(
        self, model: Model, sampler: Sampler, cache: KvCache, stager: StepStager, sizes: list[int]
    ) -> None:
        self._stager = stager
        self._sizes = sizes
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        """(size, whether the sequences are short) -> graph, logits, sampled tokens."""
        self.pool: Any = None
        for size in reversed(sizes):
            for is_short in kinds(size):
                step = stager.single_step(size)
                step.is_short = is_short
                graph, (logits, sampled) = capture(
                    partial(_forward, model, sampler, cache, step), self.pool
                )
                self.pool = self.pool or graph.pool()
                self._graphs[size, is_short] = (graph, logits, sampled)
        torch.cuda.synchronize()

    def run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor] | None:
        count = len(plan.rows)
        if (
            count != plan.num_single
            or count > self._sizes[-1]
            or not all(row.is_sampled for row in plan.rows)
        ):
            return None
        size = self._sizes[bisect_left(self._sizes, count)]
        step = self._stager.stage_single(plan, size, mask_rows)
        graph, logits, sampled = self._graphs[size, step.is_short or size <= MAX_ROWS_ONE_WAY]
        graph.replay()
        return logits, sampled


def capture(run: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Captures `run` after one uncaptured run, so that libraries create their handles and kernels
    are compiled outside of the graph."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    return graph, result


def _forward(
    model: Model, sampler: Sampler, cache: KvCache, step: StepInput
) -> tuple[Tensor, Tensor]:
    logits = model.forward(step, cache)
    return logits, sample_step(sampler, logits, step)
