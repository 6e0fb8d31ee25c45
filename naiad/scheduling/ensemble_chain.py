"""When an ensemble's steps are worth a chain of workers (naiad.workers.chain), and which instances it is made of.

In:  batches that have gone through all steps as one. Out: a chain, when there were enough of them in a row, the steps are quick, and each
model has an instance that nobody waits for. One that had to be recalled soon is tried again later and later.
"""

from __future__ import annotations

import contextlib

from naiad.core.statistics import BatchTimes
from naiad.errors import NaiadError
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.ensemble_plan import Route, RouteStep
from naiad.scheduling.ensemble_relay import Find, StepRelay
from naiad.workers.chain import MAX_STEP_NS, Chain, Follower
from naiad.workers.instance import Instance
from naiad.workers.lease import LEND_AFTER, MAX_LEND_AFTER, WORTHWHILE


def former_of(route: Route, find: Find) -> ChainFormer | None:
    """None where the steps are not one after the other."""
    if len(route.first) != 1:
        return None
    entry, steps = route.first[0], [route.first[0]]
    while entry.heir is not None:
        entry = entry.heir
        steps.append(entry)
    return ChainFormer(steps, find) if entry.is_last and len(steps) > 1 else None


class ChainFormer:
    def __init__(self, steps: list[RouteStep], find: Find) -> None:
        self._steps = steps
        self._find = find
        self._count = 0
        self._after = LEND_AFTER

    def on_batch(self, times: list[BatchTimes]) -> None:
        """One has gone through all steps as one, and they took so long."""
        self._count += 1
        if self._count < self._after:
            return
        self._count = 0
        if all(step.compute_output_start_ns - step.compute_input_end_ns <= MAX_STEP_NS for step in times):
            with contextlib.suppress(NaiadError):  # a model does not serve any more
                self._form()

    def _form(self) -> None:
        schedulers: list[DynamicScheduler] = []
        for entry in self._steps:
            scheduler = self._find(entry.step.model_name, entry.step.model_version).scheduler
            if not isinstance(scheduler, DynamicScheduler):
                return
            schedulers.append(scheduler)
        first, *others = schedulers
        head = next((found for found in first.instances if isinstance(found, Instance) and found.may_lead), None)
        followers = self._followers(others)
        if head is None or followers is None or len({id(head), *(id(follower.instance) for follower in followers)}) < len(self._steps):
            return
        relay = self._steps[0].relay
        assert relay is not None
        # A step may give more rows than it takes: what counts is how many of its answers are a batch of the next.
        sizes = [
            scheduler.max_batch_size // max(follower.form.batch_size, 1) for scheduler, follower in zip(others, followers, strict=True)
        ]
        Chain(head, relay, followers, max(min(sizes), 1), self._on_over).start()

    def _followers(self, schedulers: list[DynamicScheduler]) -> list[Follower] | None:
        found: list[Follower] = []
        for before, entry, scheduler in zip(self._steps, self._steps[1:], schedulers, strict=False):
            step_relay = before.relay
            if not isinstance(step_relay, StepRelay) or not scheduler.takes_batches:
                return None
            form = step_relay.known_form(scheduler)
            spare = scheduler.spare_instances()
            instance = next((found for found in spare if isinstance(found, Instance) and found.may_follow), None)
            if form is None or instance is None or entry.relay is None:
                return None
            found.append(Follower(instance, form, entry.outputs, entry.relay, step_relay.advance))
        return found

    def _on_over(self, chain: Chain) -> None:
        if chain.is_wanted:
            has_paid = chain.num_batches > WORTHWHILE * self._after
            self._after = LEND_AFTER if has_paid else min(2 * self._after, MAX_LEND_AFTER)
