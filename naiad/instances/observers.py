"""Whom one instance tells what happens to it: its scheduler, and those who follow its state."""

from __future__ import annotations

from naiad.instances.executor import Executor, InstanceObserver, StateObserver


class _Nobody:
    """Stands in for the scheduler of an instance that has none yet."""

    def on_capacity(self, instance: Executor) -> None:
        pass

    def on_idle(self, instance: Executor) -> None:
        pass

    def on_state_change(self, instance: Executor) -> None:
        pass


class Observers:
    def __init__(self, instance: Executor) -> None:
        self._instance = instance
        self._scheduler: InstanceObserver = _Nobody()
        self._of_state: list[StateObserver] = []

    def attach(self, scheduler: InstanceObserver) -> None:
        self._scheduler = scheduler

    def add_state_observer(self, observer: StateObserver) -> None:
        self._of_state.append(observer)

    def remove_state_observer(self, observer: StateObserver) -> None:
        self._of_state.remove(observer)

    def notify_capacity(self) -> None:
        self._scheduler.on_capacity(self._instance)

    def notify_idle(self) -> None:
        self._scheduler.on_idle(self._instance)

    def notify_state_change(self) -> None:
        # The scheduler comes last: what it hands back may make clients ask whether the model
        # still serves, and the model must know by then.
        for observer in self._of_state:
            observer.on_state_change(self._instance)
        self._scheduler.on_state_change(self._instance)
