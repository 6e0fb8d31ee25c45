"""The rate limiter (`--rate-limit=execution_count`): an instance executes only while the resources
that its config names are free.

In:  `rate_limiter` of instance groups, and the resources that the server has. Out: a `Permit` per
     instance, which the instance asks before each batch.
The instance that has executed least, counted in executions times priority, goes first. One that
waits for resources keeps others from acquiring them; instances that need none of those resources go
on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from naiad.core.clock import Clock
from naiad.errors import invalid_arg
from naiad.instances.instance_plan import PermitHolder
from naiad.pb.model_config_pb2 import ModelInstanceGroup

EVERY_DEVICE = -1
GLOBAL = -2

Key: TypeAlias = tuple[str, int]
"""The name of a resource, and the device that it belongs to, or GLOBAL."""


class Needs(msgspec.Struct, frozen=True):
    """What one instance holds while it executes."""

    resources: dict[Key, int] = {}
    priority: int = 1


def read_needs(group: ModelInstanceGroup, device: int) -> Needs:
    limiter = group.rate_limiter
    return Needs(
        {
            (resource.name, GLOBAL if getattr(resource, "global") else device): resource.count
            for resource in limiter.resources
        },
        limiter.priority or 1,
    )


class Permit:
    """The permit of one instance (naiad.instances.instance_plan.Permit)."""

    def __init__(self, limiter: RateLimiter, needs: Needs) -> None:
        self._limiter = limiter
        self.needs = needs
        self.num_held = 0
        self.num_executions = 0
        self.is_waiting = False
        """The instance had room and was told to wait. Perhaps it has nothing left to execute."""
        self._holder: PermitHolder | None = None

    def attach(self, holder: PermitHolder) -> None:
        self._holder = holder

    def offer(self) -> None:
        """Tells the instance that it may ask again."""
        if self._holder is not None:
            self._holder.on_permit()

    @property
    def rank(self) -> int:
        return self.num_executions * self.needs.priority

    def may_run(self) -> bool:
        return self._limiter.may_run(self)

    def acquire(self) -> None:
        self._limiter.acquire(self)

    def release(self) -> None:
        self._limiter.release(self)

    def close(self) -> None:
        self._limiter.remove(self)


class RateLimiter:
    def __init__(self, clock: Clock, available: Mapping[Key, int] | None = None) -> None:
        """`available`: the resources that the server has; None means as many as the most demanding
        instance needs."""
        self._clock = clock
        self._available = available
        self._permits: list[Permit] = []
        self._in_use: dict[Key, int] = {}
        self._is_offer_due = False

    def add(self, needs: Needs) -> Permit:
        """Raises NaiadError when such an instance could never execute."""
        self._check_kinds(needs)
        for key, count in needs.resources.items():
            limit = self._limit(key, extra=needs)
            if count > limit:
                raise invalid_arg(
                    f'Resource count for "{key[0]}" is limited to {limit} which will prevent '
                    "scheduling of one or more model instances, the minimum required count is "
                    f"{count}"
                )
        permit = Permit(self, needs)
        self._permits.append(permit)
        return permit

    def remove(self, permit: Permit) -> None:
        if permit in self._permits:
            while permit.num_held:
                self.release(permit)
            self._permits.remove(permit)
            self._offer_soon()

    def may_run(self, permit: Permit) -> bool:
        if self._is_next(permit):
            return True
        permit.is_waiting = True
        self._offer_soon()
        return False

    def acquire(self, permit: Permit) -> None:
        permit.is_waiting = False
        permit.num_held += 1
        permit.num_executions += 1
        for key, count in permit.needs.resources.items():
            self._in_use[key] = self._in_use.get(key, 0) + count

    def release(self, permit: Permit) -> None:
        if not permit.num_held:
            return  # removed, while its last batches were executing
        permit.num_held -= 1
        for key, count in permit.needs.resources.items():
            self._in_use[key] -= count
        if permit.needs.resources:
            self._offer_soon()

    # Who is next.

    def _is_next(self, permit: Permit) -> bool:
        return self._has_room(permit) and not any(
            self._goes_first(other, permit) for other in self._permits
        )

    def _goes_first(self, other: Permit, permit: Permit) -> bool:
        return (
            other.is_waiting
            and other.rank < permit.rank
            and not other.needs.resources.keys().isdisjoint(permit.needs.resources)
        )

    def _offer_soon(self) -> None:
        """Lets instances that wait ask again, in order. An instance with nothing left to execute
        does not ask, and so it blocks nobody any more."""
        if not self._is_offer_due and any(permit.is_waiting for permit in self._permits):
            self._is_offer_due = True
            self._clock.call_soon(self._offer)

    def _offer(self) -> None:
        waiting = sorted(
            (permit for permit in self._permits if permit.is_waiting),
            key=lambda permit: permit.rank,
        )
        for permit in waiting:
            # Only those that may run: the others would ask in every iteration of the loop for
            # nothing.
            if self._is_next(permit):
                permit.is_waiting = False
                permit.offer()
        self._is_offer_due = False

    # Resources.

    def _has_room(self, permit: Permit) -> bool:
        return all(
            self._in_use.get(key, 0) + count <= self._limit(key)
            for key, count in permit.needs.resources.items()
        )

    def _limit(self, key: Key, extra: Needs | None = None) -> int:
        if self._available is None:
            needs: Iterable[Needs] = (permit.needs for permit in self._permits)
            return max(
                (
                    n.resources.get(key, 0)
                    for n in (*needs, *([extra] if extra is not None else []))
                ),
                default=0,
            )
        name, device = key
        if device == GLOBAL:
            return max(
                (count for (other, _), count in self._available.items() if other == name), default=0
            )
        return self._available.get(key, self._available.get((name, EVERY_DEVICE), 0))

    def _check_kinds(self, needs: Needs) -> None:
        kinds = {
            (name, device == GLOBAL)
            for permit in self._permits
            for name, device in permit.needs.resources
        }
        for name, device in needs.resources:
            if (name, device != GLOBAL) in kinds or (
                (name, GLOBAL) in needs.resources and device != GLOBAL
            ):
                raise invalid_arg(
                    f'Resource "{name}" is present as both global and device-specific resource in '
                    "the model configuration."
                )
