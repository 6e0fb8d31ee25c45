"""Who waits for whom: a BLS call that would wait for ever is refused at once, with the names along
the circle.

An instance is stuck when it has no room for another batch and each of its batches waits for a call
that is stuck; a call is stuck when the instance that works on it is, or, while it queues, all
instances of the model are. That is the largest such set, found by starting with all that can be
reached and taking out who can still move. Looked at only when a model calls another one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from naiad.core.request import InferRequest
from naiad.errors import internal
from naiad.instances.lease import Lease


class Waiter(Protocol):
    """What is asked of an instance (naiad.instances.instance.Instance)."""

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

    def lend(
        self, batch_size: int, is_at_rest: Callable[[], bool], on_over: Callable[[Lease], None]
    ) -> tuple[Lease, socket.socket] | None:
        """None when it cannot be spared now. The socket is the borrower's end, and the caller's to
        close."""
        ...

    def executes(self, request: InferRequest) -> bool: ...

    def waits(self) -> list[list[OutgoingCall]]:
        """For each batch that it works on: the calls that it waits for."""
        ...


class Target(msgspec.Struct, eq=False):
    """A request that a call has led to: its own, or one of an ensemble's steps."""

    request: InferRequest
    model_name: str
    instances: Sequence[Waiter]

    @property
    def is_over(self) -> bool:
        return self.request.stream is not None and self.request.stream.is_closed

    def executor(self) -> Waiter | None:
        return next(
            (instance for instance in self.instances if instance.executes(self.request)), None
        )


class OutgoingCall:
    """A call that a model has made and that is not answered yet."""

    __slots__ = ("instance", "targets")

    def __init__(self, instance: Waiter) -> None:
        self.instance = instance
        self.targets: list[Target] = []

    def enter(self, request: InferRequest, model_name: str, instances: Sequence[Waiter]) -> None:
        """Before the request is queued. Raises NaiadError when it would never be executed."""
        self.targets = [target for target in self.targets if not target.is_over]
        target = Target(request, model_name, instances)
        self.targets.append(target)
        if not instances or any(instance.is_free for instance in instances):
            return
        stuck = _find_stuck(self)
        if self.instance in stuck and all(instance in stuck for instance in instances):
            self.targets.remove(target)
            names = " -> ".join(f"'{name}'" for name in _circle(self, target, stuck))
            raise internal(
                f"model {names} is a circle of calls that would wait for ever: every instance of '{model_name}' waits for it; "
                "more instances, or an async execute, would let it go on"
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
    found = {start}
    waiting = [start]
    while waiting:
        for calls in waiting.pop().waits():
            for call in calls:
                for target in call.targets:
                    new = [instance for instance in target.instances if instance not in found]
                    found.update(new)
                    waiting += new
    return found


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
    """Names of models from the caller back to itself."""
    names = [call.instance.model_name]
    seen: set[int] = set()
    found: Target | None = target
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        names.append(found.model_name)
        if found.model_name == names[0]:
            break
        instance = found.executor() or found.instances[0]
        found = next(
            (
                next_
                for calls in instance.waits()
                for c in calls
                if (next_ := _stuck_target(c, stuck)) is not None
            ),
            None,
        )
    return names
