from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from naiad.core.statistics import BatchTimes
from naiad.scheduling.ensemble_chain import ChainFormer, former_of
from naiad.scheduling.ensemble_plan import EnsemblePlan, Step
from naiad.workers.chain import MAX_STEP_NS
from naiad.workers.lease import LEND_AFTER, MAX_LEND_AFTER, WORTHWHILE

QUICK = BatchTimes(0, 0, MAX_STEP_NS, MAX_STEP_NS)
SLOW = BatchTimes(0, 0, MAX_STEP_NS + 1, MAX_STEP_NS + 1)


def step(model: str, inputs: str, outputs: str) -> Step:
    """Tensors of the ensemble by letter."""
    return Step(model, "", {f"x{name}": name for name in inputs}, {f"y{name}": name for name in outputs})


def find(name: str, version: str) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("steps", "outputs", "is_row"),
    [
        ([step("a", "I", "p"), step("b", "p", "q"), step("c", "q", "O")], ["O"], True),
        ([step("a", "I", "pq"), step("b", "pq", "O")], ["O"], True),
        ([step("a", "I", "O")], ["O"], False),
        ([step("a", "I", "p"), step("b", "pI", "O")], ["O"], False),
        ([step("a", "I", "p"), step("b", "p", "O")], ["p", "O"], False),
        ([step("a", "I", "p"), step("b", "I", "q"), step("c", "pq", "O")], ["O"], False),
        ([step("a", "I", "p"), step("b", "p", "O"), step("c", "p", "U")], ["O", "U"], False),
    ],
)
def test_only_steps_that_are_one_after_the_other(steps: list[Step], outputs: list[str], is_row: bool) -> None:
    plan = EnsemblePlan("e", "1", steps, outputs, False, 4)
    assert (former_of(plan.route([]), find) is not None) == is_row


class Former(ChainFormer):
    def __init__(self) -> None:
        super().__init__([], find)
        self.num_formed = 0

    def _form(self) -> None:
        self.num_formed += 1

    def batches_until_formed(self) -> int:
        before, count = self.num_formed, 0
        while self.num_formed == before:
            self.on_batch([QUICK, QUICK])
            count += 1
        return count

    def end(self, num_batches: int, *, is_wanted: bool) -> None:
        chain: Any = SimpleNamespace(num_batches=num_batches, is_wanted=is_wanted)
        self._on_over(chain)


def test_a_chain_is_formed_after_some_batches_in_which_every_step_was_quick() -> None:
    former = Former()
    assert former.batches_until_formed() == LEND_AFTER
    for _ in range(3 * LEND_AFTER):
        former.on_batch([QUICK, SLOW])
    assert former.num_formed == 1


def test_one_that_others_wanted_soon_is_tried_again_ever_later() -> None:
    former = Former()
    former.end(1, is_wanted=True)
    assert former.batches_until_formed() == 2 * LEND_AFTER
    for _ in range(20):
        former.end(1, is_wanted=True)
    assert former.batches_until_formed() == MAX_LEND_AFTER
    former.end(WORTHWHILE * MAX_LEND_AFTER + 1, is_wanted=True)
    assert former.batches_until_formed() == LEND_AFTER


def test_one_that_was_not_needed_any_more_is_formed_again_as_the_first_was() -> None:
    former = Former()
    former.end(0, is_wanted=False)
    assert former.batches_until_formed() == LEND_AFTER
