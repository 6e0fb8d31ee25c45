"""The runner of the other ranks: does with a Step what rank 0's runner does with its plan, except
for sampling."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import cast, overload

import torch

from naiad.llm.parallel.message import Step
from naiad.llm.sequence import Sequence
from naiad.llm.step.runner import Runner
from naiad.llm.token_scheduler import ScheduledRow, StepPlan

MAX_IN_FLIGHT = 1
"""As many steps as rank 0 has on its device when it launches another. Staging buffers are written
again only after the steps that read them (packed_staging.py)."""


class TokenWindow:
    """The tokens of a row, at the places that they have in their sequence."""

    def __init__(self, start: int, tokens: list[int]) -> None:
        self._start = start
        self._tokens = tokens

    def __len__(self) -> int:
        return self._start + len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int):
            return self._tokens[index - self._start]
        return self._tokens[index.start - self._start : index.stop - self._start]


@dataclass(slots=True, frozen=True)
class FollowedSequence:
    slot: int
    tokens: TokenWindow


class FollowingRunner(Runner):
    def __init__(self, *parts: object, **named: object) -> None:
        super().__init__(*parts, **named)  # type: ignore[arg-type]
        self._events: deque[torch.cuda.Event] = deque()

    @torch.inference_mode()
    def follow(self, step: Step) -> None:
        while len(self._events) > MAX_IN_FLIGHT:
            self._events.popleft().synchronize()
        if step.places:
            self._send_updates(step.places, step.blocks, [], [])
        self._run(read_plan(step), {})
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._events.append(event)


def read_plan(step: Step) -> StepPlan:
    rows: list[ScheduledRow] = []
    first = 0
    for slot, start, count, is_sampled in zip(
        step.slots, step.starts, step.counts, step.sampled, strict=True
    ):
        tokens = [token for token in step.tokens[first : first + count] if token >= 0]
        sequence = cast(Sequence, FollowedSequence(slot, TokenWindow(start, tokens)))
        rows.append(ScheduledRow(sequence, start, count, is_sampled))
        first += count
    return StepPlan(rows, step.num_single, len(step.tokens))
