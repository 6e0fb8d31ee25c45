"""The input of one step on the device: views into the packed staging buffer, and the few numbers
that launches need on the host.

In:  step_stager.py fills it from a StepPlan. Out: the decoder's operations and the sampler read it.
     Rows 0..num_single-1 are one-token rows, each of another sequence; the other tokens belong to
     prompt segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class PromptSegment:
    first_row: int
    count: int
    start: int
    """Position of the segment's first token; everything before it is in the cache."""
    slot: int


@dataclass(slots=True)
class StepInput:
    token_ids: Tensor
    """int32 [tokens]; -1 means the token that was sampled last for the row's slot."""
    positions: Tensor
    slots: Tensor
    num_single: int
    segments: list[PromptSegment] = field(default_factory=list)
    chunks: Tensor | None = None
    """int32 [chunks, 8]: the records of chunk_plan.py, for the decode attention."""
    is_short: bool = False
    """True if the one-token rows' sequences are short on average (chunk_plan.is_short); the decode
    attention then uses smaller tiles."""
    tiles: Tensor | None = None
    """int32 [tiles, 4]: first row, first position, tokens, slot, for the prompt attention."""
    sample_rows: Tensor | None = None
    """int32: rows that are sampled; None means all of them in order."""
    sample_slots: Tensor | None = None
    sample_positions: Tensor | None = None
    """Position of the token to be sampled: the random stream's counter."""
    mask_rows: Tensor | None = None
    """int32 per sampled row: row of the staged bitmasks, or -1."""

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]
