"""Which instances wait for which: a BLS call that would wait for ever is refused at once, and the
error names the models along the circle.

An instance is stuck when it has no room for another batch and each of its batches waits for a call
that is stuck. A call is stuck when the instance that executes it is stuck, or, while the call
queues, all instances of the model are. The stuck instances are the largest such set: the search
starts with all instances that can be reached and removes those that can still go on. It runs only
when a model calls another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from naiad.core.job import Job
from naiad.errors import internal
from naiad.instances.loan import Loan


class Waiter(Protocol):
    """What the call graph needs to know about an instance (naiad.instances.instance.Instance)."""

    @property
    def model_name(self) -> str: ...

    @property
    def is_free(self) -> bool: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def name(self) -> str: ...

    @property
    def may_borrow(self) -> bool: ...

    @property
    def loan(self) -> Loan: ...

    def executes(self, job: Job) -> bool: ...

    def waits(self) -> list[list[OutgoingCall]]:
        """For each batch that the instance executes: the calls that the batch waits for."""
        ...


class Target(msgspec.Struct, eq=False):
    """A job that a call has led to: the called one, or a step of a called ensemble."""

    job: Job
    model_name: str
    instances: Sequence[Waiter]

    @property
    def is_over(self) -> bool:
        return self.job.stream.is_closed

    def executor(self) -> Waiter | None:
        return next((instance for instance in self.instances if instance.executes(self.job)), None)


class OutgoingCall:
    """A call of a model that has not had its final response."""

    __slots__ = ("instance", "targets")

    def __init__(self, instance: Waiter) -> None:
        self.instance = instance
        self.targets: list[Target] = []

    def enter(self, job: Job, model_name: str, instances: Sequence[Waiter]) -> None:
        """Registers a job before it is queued. Raises NaiadError when it would never be
        executed."""
        self.targets = [target for target in self.targets if not target.is_over]
        target = Target(job, model_name, instances)
        self.targets.append(target)
        if not instances or any(instance.is_free for instance in instances):
            return
        stuck = _find_stuck(self)
        if self.instance in stuck and all(instance in stuck for instance in instances):
            self.targets.remove(target)
            names = " -> ".join(f"'{name}'" for name in _circle(self, target, stuck))
            raise internal(
                f"model {names} is a cycle of calls that would wait forever: every instance of "
                f"'{model_name}' waits for it; more instances, or an async execute, would let it "
                "go on"
            )


def _find_stuck(call: OutgoingCall) -> set[Waiter]:
    stuck = _reachable(call.instance)
    is_shrinking = True
    while is_shrinking:
        moving = [instance for instance in stuck if not _is_stuck(instance, stuck)]
        stuck.difference_update(moving)
        is_shrinking = bool(moving)
    return stuck


def _reachable(start: Waiter) -> set[Waiter]:
    reached = {start}
    unvisited = [start]
    while unvisited:
        for calls in unvisited.pop().waits():
            for call in calls:
                for target in call.targets:
                    new = [instance for instance in target.instances if instance not in reached]
                    reached.update(new)
                    unvisited += new
    return reached


def _is_stuck(instance: Waiter, stuck: set[Waiter]) -> bool:
    if instance.is_free or not instance.is_serving:
        return False
    batches = instance.waits()
    return bool(batches) and all(
        any(_stuck_target(call, stuck) for call in calls) for calls in batches
    )


def _stuck_target(call: OutgoingCall, stuck: set[Waiter]) -> Target | None:
    for target in call.targets:
        if target.is_over or not target.instances:
            continue
        executor = target.executor()
        if (
            executor in stuck
            if executor is not None
            else all(instance in stuck for instance in target.instances)
        ):
            return target
    return None


def _circle(call: OutgoingCall, target: Target, stuck: set[Waiter]) -> list[str]:
    """The names of the models from the caller back to itself."""
    names = [call.instance.model_name]
    seen: set[int] = set()
    current: Target | None = target
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        names.append(current.model_name)
        if current.model_name == names[0]:
            break
        instance = current.executor() or current.instances[0]
        current = next(
            (
                next_target
                for calls in instance.waits()
                for waiting in calls
                if (next_target := _stuck_target(waiting, stuck)) is not None
            ),
            None,
        )
    return names
