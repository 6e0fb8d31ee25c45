"""What an engine that is one rank of several has besides the parts of every engine: its shard, the
collectives, and how it settles numbers with the others.

`Peers` is implemented by RankGroup (rank 0, which plans) and by Follower (all others).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from naiad.llm.parallel.collectives import Collectives
from naiad.llm.parallel.shard import Shard
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.runner import Model, Runner, Sampler
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.step_stager import StepStager


class Peers(Protocol):
    shard: Shard
    device: torch.device
    collectives: Collectives

    def agree(self, num_blocks: int) -> int:
        """Returns the smallest number of KV blocks that any rank has room for."""

    def make_runner(
        self, model: Model, cache: KvCache, table: SlotTable, sampler: Sampler, stager: StepStager
    ) -> Runner: ...

    def make_sampler(self, sampler: Sampler, table: SlotTable) -> Sampler: ...


class LeadingSampler:
    """Samples, and tells the other ranks the tokens."""

    def __init__(self, sampler: Sampler, collectives: Collectives) -> None:
        self._sampler = sampler
        self._collectives = collectives

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor, mask_rows: Tensor) -> Tensor:
        tokens = self._sampler.sample(logits, slots, positions, mask_rows)
        self._collectives.broadcast(tokens)
        return tokens


class FollowingSampler:
    """Gets the tokens from rank 0 and keeps them where the next step looks for them."""

    def __init__(self, next_tokens: Tensor, collectives: Collectives) -> None:
        self._next_tokens = next_tokens
        self._collectives = collectives

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor, mask_rows: Tensor) -> Tensor:
        tokens = torch.empty(slots.shape[0], dtype=torch.int32, device=logits.device)
        self._collectives.broadcast(tokens)
        self._next_tokens[slots.long()] = tokens
        return tokens
