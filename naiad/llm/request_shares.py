"""Keeps one client request from filling the engine: of its completions only a share waits for a
slot or has one, and the others are held here until one of those ends.

Rule: a request is known by `group`, or by its id if it has none.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from naiad.llm.generation import GenerationRequest


class Completion(Protocol):
    request: GenerationRequest


AnyCompletion = TypeVar("AnyCompletion", bound=Completion)


class RequestShares(Generic[AnyCompletion]):
    def __init__(self, max_active: int) -> None:
        self._max_active = max_active
        self._num_active: dict[str, int] = {}
        self._held: dict[str, deque[AnyCompletion]] = {}
        self.num_held = 0

    def admit(self, sequence: AnyCompletion) -> bool:
        """Returns False if the sequence is held: `release` returns it later."""
        key = _key(sequence)
        count = self._num_active.get(key, 0)
        if count < self._max_active:
            self._num_active[key] = count + 1
            return True
        self._held.setdefault(key, deque()).append(sequence)
        self.num_held += 1
        return False

    def drop_held(self, sequence: AnyCompletion) -> bool:
        """Returns False if the sequence is not held."""
        key = _key(sequence)
        held = self._held.get(key)
        if held is None or sequence not in held:
            return False
        held.remove(sequence)
        self.num_held -= 1
        if not held:
            del self._held[key]
        return True

    def release(self, sequence: AnyCompletion) -> AnyCompletion | None:
        """Counts an admitted sequence out. Returns the one that takes its place."""
        key = _key(sequence)
        held = self._held.get(key)
        if held is not None:
            following = held.popleft()
            self.num_held -= 1
            if not held:
                del self._held[key]
            return following
        count = self._num_active[key] - 1
        if count:
            self._num_active[key] = count
        else:
            del self._num_active[key]
        return None


def _key(sequence: Completion) -> str:
    request = sequence.request
    return request.group or f"id {request.id}"
