"""The plans of one endpoint, by model and by what the plan recognises.

Plans hold their model, so the cache drops them when the model stops: after an unload, and after a
reload for the copy that was replaced. Whoever still holds a dropped plan sees that it is retired.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from naiad.core.seen_keys import SeenKeys

if TYPE_CHECKING:
    from naiad.repository.model import Model

MAX_PLANS = 1024
"""Clients that never repeat themselves must not fill the memory: a full cache starts again."""
LARGE_BYTES = 64 * 1024
"""A larger request gets a plan when it comes the second time: its data costs more than the plan
saves, and large tensors of ever new shapes would fill the cache."""


class RetirablePlan(Protocol):
    def retire(self) -> None:
        """The plan lets go of its model and serves no further request."""
        ...


PlanT = TypeVar("PlanT", bound=RetirablePlan)


class PlanCache(Generic[PlanT]):
    def __init__(self) -> None:
        self._plans: dict[Model, dict[Hashable, PlanT]] = {}
        self._num_plans = 0
        self._seen = SeenKeys()

    def __len__(self) -> int:
        return self._num_plans

    def get(self, model: Model, key: Hashable) -> PlanT | None:
        plans = self._plans.get(model)
        return None if plans is None else plans.get(key)

    def is_worth(self, model: Model, key: Hashable, num_bytes: int) -> bool:
        """Returns True if a plan for requests of `num_bytes` should be made."""
        return num_bytes <= LARGE_BYTES or self._seen.add((model, key))

    def add(self, model: Model, key: Hashable, plan: PlanT) -> None:
        if self._num_plans >= MAX_PLANS:
            self._clear()
        plans = self._plans.get(model)
        if plans is None:
            plans = self._plans[model] = {}
            model.on_stopped.append(partial(self._drop, model))
        if key in plans:
            plans[key].retire()
            self._num_plans -= 1
        plans[key] = plan
        self._num_plans += 1

    def _clear(self) -> None:
        """Models stay known: each has one entry in `on_stopped`, however often the cache fills."""
        for plans in self._plans.values():
            for plan in plans.values():
                plan.retire()
            plans.clear()
        self._num_plans = 0

    def _drop(self, model: Model) -> None:
        plans = self._plans.pop(model)
        self._num_plans -= len(plans)
        for plan in plans.values():
            plan.retire()
