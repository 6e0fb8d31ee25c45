"""Captured steps that contain prompts: one graph per number of tokens, with all layers; the head
and the sampler are launched after it.

In:  any StepPlan. Out: logits and sampled tokens, or None if the plan has too many tokens or
     prompts for every graph. Launching such a step kernel by kernel takes the host some 10 ms,
     while the device needs far less for a few hundred tokens.
Rule: a graph reads its inputs only at fixed addresses (StepStager.stage_padded); the data there
      defines which rows are prompts.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Any

import torch
from torch import Tensor

from naiad.llm.models.decoder import Decoder
from naiad.llm.models.operations import Stream
from naiad.llm.step.cuda_graphs import capture
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.runner import Sampler, sample_step
from naiad.llm.step.step_stager import StepStager, padded_size
from naiad.llm.token_scheduler import StepPlan

SIZES = (
    16,
    32,
    48,
    *range(64, 256, 32),
    *range(256, 512, 64),
    *range(512, 1024, 128),
    *range(1024, 2049, 256),
)
WORTH_CAPTURING = 4.2e12
"""Tokens times parameters. Above this, the device computes longer than the host launches (measured
on an H200: 12 ms, 680 TFLOP/s)."""


def prompt_ladder(max_tokens: int, num_parameters: int) -> tuple[int, ...]:
    """Returns the sizes of the graphs. The last one may exceed the maximum of a step, so that the
    fullest step fits too (padded_size)."""
    fullest = max_tokens + 1
    limit = min(fullest, max(SIZES[0], int(WORTH_CAPTURING / num_parameters)))
    below = [size for size in SIZES if size < limit]
    return SIZES[: len(below) + (limit == fullest or limit in SIZES)]


class PromptGraphs:
    @torch.inference_mode()
    def __init__(
        self,
        model: Decoder,
        sampler: Sampler,
        cache: KvCache,
        stager: StepStager,
        sizes: tuple[int, ...],
        pool: Any,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._stager = stager
        self._sizes = sizes
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Stream]] = {}
        for size in reversed(sizes):
            self._graphs[size] = capture(
                partial(model.run_layers, stager.padded_step(size), cache), pool
            )
        torch.cuda.synchronize()

    def run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor] | None:
        index = bisect_left(self._sizes, padded_size(plan))
        if index == len(self._sizes):
            return None
        size = self._sizes[index]
        step = self._stager.stage_padded(plan, size, mask_rows)
        graph, stream = self._graphs[size]
        graph.replay()
        # A copy, because a reader of a stream may record in it that its parts have been added.
        logits = self._model.logits(Stream(stream.value, stream.partials, stream.bias), step)
        return logits, sample_step(self._sampler, logits, step)
