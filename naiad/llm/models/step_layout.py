"""Computes, once per step and for every layer, where the step's tokens are in the paged cache and
which tokens each of them attends to.

In:  a StepInput and the cache's block tables. Out: indices to store at, pages to gather, additive
     masks. One-token rows are grouped by similar length, so that a whole group is one product
     however long its longest row is.
Rule: all numbers on the host are read here, once per step; the work of a layer does not depend on
      the number of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from naiad.llm.models.operations import AttentionShape
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import PromptSegment, StepInput

MAX_PADDING = 2
"""A row is padded to at most this many times its own length, or to ALWAYS_PADDED tokens."""
ALWAYS_PADDED = 128
"""Padding to this many tokens costs less than another group."""


@dataclass(slots=True, eq=False)
class SingleGroup:
    rows: Tensor | None
    """Rows of the step; None means all one-token rows in order."""
    slots: Tensor
    positions: Tensor
    shortest: int
    longest: int
    """The longest length; like `shortest`, it includes the row's own token."""


@dataclass(slots=True, eq=False)
class Reach:
    """The pages of the cache that rows read, and which positions in them each row attends to."""

    pages: Tensor
    """int64 row indices into a layer's cache viewed as [2 * blocks * KV heads, block_size *
    head_dim]: all pages of keys, then of values."""
    mask: Tensor
    """Added to scores: 0 or -inf. Groups: [rows * KV heads, 1, places]; prompts: [tokens,
    places]."""


class StepLayout:
    def __init__(self, step: StepInput, cache: KvCache) -> None:
        self.step = step
        self.block_size = cache.block_size
        self.slots = step.slots.long()
        self.positions = step.positions.long()
        self.groups = self._group(step.positions[: step.num_single].tolist())
        self._tables = cache.block_tables
        self._num_blocks = cache.num_blocks
        self._targets: dict[int, Tensor] = {}
        self._reaches: dict[tuple[object, ...], Reach] = {}

    def targets(self, num_kv_heads: int) -> Tensor:
        """Returns row indices for each token's keys and values, into a layer's cache viewed as
        [2 * blocks * KV heads * block_size, head_dim]."""
        found = self._targets.get(num_kv_heads)
        if found is None:
            blocks = self._tables[self.slots, self.positions // self.block_size].long()
            pages = self._with_values(
                blocks[:, None] * num_kv_heads + torch.arange(num_kv_heads), num_kv_heads, 1
            )
            found = self._targets[num_kv_heads] = (
                pages * self.block_size + self.positions[:, None] % self.block_size
            ).flatten()
        return found

    def group_reach(self, group: SingleGroup, shape: AttentionShape, dtype: torch.dtype) -> Reach:
        key = (id(group), shape.num_kv_heads, shape.window)
        found = self._reaches.get(key)
        if found is None:
            first = max(0, group.shortest - shape.window) // self.block_size if shape.window else 0
            blocks = self._tables[group.slots, first : -(-group.longest // self.block_size)].long()
            mask = self._mask(group.positions, first, blocks.shape[1], shape.window, dtype)
            pages = (
                blocks[:, None, :] * shape.num_kv_heads + torch.arange(shape.num_kv_heads)[:, None]
            )
            pages = self._with_values(pages.flatten(), shape.num_kv_heads, 0)
            found = self._reaches[key] = Reach(
                pages, mask.repeat_interleave(shape.num_kv_heads, 0)[:, None]
            )
        return found

    def prompt_reach(
        self, segment: PromptSegment, shape: AttentionShape, dtype: torch.dtype
    ) -> Reach:
        key = (id(segment), shape.num_kv_heads, shape.window)
        found = self._reaches.get(key)
        if found is None:
            first = (
                max(0, segment.start + 1 - shape.window) // self.block_size if shape.window else 0
            )
            blocks = self._tables[
                segment.slot, first : -(-(segment.start + segment.count) // self.block_size)
            ].long()
            positions = self.positions[segment.first_row : segment.first_row + segment.count]
            pages = blocks * shape.num_kv_heads + torch.arange(shape.num_kv_heads)[:, None]
            mask = self._mask(positions, first, blocks.shape[0], shape.window, dtype)
            found = self._reaches[key] = Reach(
                self._with_values(pages.flatten(), shape.num_kv_heads, 0), mask
            )
        return found

    def _with_values(self, pages: Tensor, num_kv_heads: int, dim: int) -> Tensor:
        return torch.cat((pages, pages + self._num_blocks * num_kv_heads), dim)

    def _mask(
        self, positions: Tensor, first_block: int, num_blocks: int, window: int, dtype: torch.dtype
    ) -> Tensor:
        """[positions, places]."""
        places = torch.arange(
            first_block * self.block_size, (first_block + num_blocks) * self.block_size
        )
        distance = positions[:, None] - places
        hidden = (distance < 0) | (distance >= window) if window else distance < 0
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))

    def _group(self, positions: list[int]) -> list[SingleGroup]:
        if not positions:
            return []
        parts: list[list[int]] = []
        for row in sorted(range(len(positions)), key=positions.__getitem__, reverse=True):
            if (
                parts
                and max(MAX_PADDING * (positions[row] + 1), ALWAYS_PADDED) > positions[parts[-1][0]]
            ):
                parts[-1].append(row)
            else:
                parts.append([row])
        if len(parts) == 1:
            count = len(positions)
            return [
                SingleGroup(
                    None,
                    self.slots[:count],
                    self.positions[:count],
                    min(positions) + 1,
                    max(positions) + 1,
                )
            ]
        return [
            self._part(torch.tensor(part), positions[part[-1]] + 1, positions[part[0]] + 1)
            for part in parts
        ]

    def _part(self, rows: Tensor, shortest: int, longest: int) -> SingleGroup:
        return SingleGroup(rows, self.slots[rows], self.positions[rows], shortest, longest)
