"""The runner of rank 0: sends each step to the other ranks before it runs its own part.

Rule: a step that fails here has begun on the other ranks, so the ranks cannot go on together: every
      failure is a RankLostError, after which the process ends and is started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from naiad.llm.parallel.fault import RankLostError
from naiad.llm.parallel.message import Step
from naiad.llm.step.runner import LaunchedStep, Runner
from naiad.llm.token_scheduler import StepPlan

POLL_S = 0.00005
UNKNOWN_TOKEN = -1


class LeadingRunner(Runner):
    tell: Callable[[Step], None]
    """Sends a step to all other ranks; raises RankLostError."""
    explain: Callable[[BaseException], RankLostError]
    timeout_s: float
    check: Callable[[], None]
    """Raises RankLostError if a rank is gone."""

    def launch(self, plan: StepPlan) -> LaunchedStep:
        self._new_blocks: tuple[list[int], list[int]] = ([], [])
        launched = super().launch(plan)
        if launched.event is not None:
            launched.event = WatchedEvent(launched.event, self.timeout_s, self.check)
        return launched

    def _send_updates(
        self, places: list[int], blocks: list[int], slots: list[int], rows: list[NDArray[np.int32]]
    ) -> None:
        self._new_blocks = (places, blocks)
        super()._send_updates(places, blocks, slots, rows)

    def _run(self, plan: StepPlan, mask_rows: dict[int, int]) -> tuple[Tensor, Tensor]:
        self.tell(step_message(plan, *self._new_blocks))
        try:
            return super()._run(plan, mask_rows)
        except Exception as error:
            raise self.explain(error) from error


class WatchedEvent:
    """An event of the device for which nobody waits longer than the time limit of a step."""

    def __init__(self, event: Any, timeout_s: float, check: Callable[[], None]) -> None:
        self._event = event
        self._timeout_s = timeout_s
        self._check = check

    def synchronize(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while not self._event.query():
            self._check()
            if time.monotonic() > deadline_s:
                raise RankLostError(
                    f"a step did not end within {self._timeout_s:g} s: a rank or the connection "
                    "between the ranks hangs"
                )
            time.sleep(POLL_S)
        self._event.synchronize()


def step_message(plan: StepPlan, places: list[int], blocks: list[int]) -> Step:
    tokens: list[int] = []
    for row in plan.rows:
        known = row.sequence.tokens[row.start : row.start + row.count]
        tokens += known
        tokens += [UNKNOWN_TOKEN] * (row.count - len(known))
    return Step(
        [row.sequence.slot for row in plan.rows],
        [row.start for row in plan.rows],
        [row.count for row in plan.rows],
        [row.is_sampled for row in plan.rows],
        tokens,
        plan.num_single,
        places,
        blocks,
    )
