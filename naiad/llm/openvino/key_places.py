"""Decides which completions OpenVINO computes, so that API keys take turns: OpenVINO's own
scheduler knows no keys.

In:  completions as they come and end. Out: which of them the pipeline is to drop or to get before
     the next step.
A key alone has all places. While several keys are active there are only a few places, divided by
the keys' weights: every step computes all places, so a new request of a quiet key would otherwise
wait for a long step of the key that floods. What is beyond a key's part is paused and goes on from
the prefix cache.
Rule: a completion is in exactly one of `waiting` and `running` of its key until it is removed.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from naiad.llm.generation import GenerationRequest

ACTIVE_NS = 5_000_000_000
"""A key counts as active for this long after its last request. A key that sends one request after
the other stays active in between."""


class Completion(Protocol):
    request: GenerationRequest

    @property
    def can_pause(self) -> bool: ...


AnyCompletion = TypeVar("AnyCompletion", bound=Completion)


class _Key(Generic[AnyCompletion]):
    __slots__ = ("idle_since_ns", "running", "waiting", "weight")

    def __init__(self) -> None:
        self.waiting: deque[AnyCompletion] = deque()
        self.running: list[AnyCompletion] = []
        self.weight = 1
        self.idle_since_ns = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)


class KeyPlaces(Generic[AnyCompletion]):
    def __init__(self, num_places: int, num_shared: int) -> None:
        """`num_shared` is the number of places while several keys are active."""
        self._num_places = num_places
        self._num_shared = min(num_shared, num_places)
        self._keys: dict[str, _Key[AnyCompletion]] = {}
        self.num_running = 0

    def add(self, sequence: AnyCompletion) -> None:
        """The completion waits from now on."""
        key = self._keys.setdefault(sequence.request.key_id, _Key())
        key.weight = max(1, sequence.request.key_weight)
        key.waiting.append(sequence)

    def remove(self, sequence: AnyCompletion, now_ns: int) -> None:
        """The completion has ended, or was cancelled."""
        key = self._keys.get(sequence.request.key_id)
        if key is None:
            return
        if sequence in key.running:
            key.running.remove(sequence)
            self.num_running -= 1
        elif sequence in key.waiting:
            key.waiting.remove(sequence)
        if not key.has_work:
            key.idle_since_ns = now_ns

    def pause(self, now_ns: int) -> list[AnyCompletion]:
        """Returns completions that run and must wait now, because their key has more than its
        part. They are first in the key's order again."""
        self._forget_idle(now_ns)
        if len(self._keys) < 2:
            return []
        paused: list[AnyCompletion] = []
        for key in self._keys.values():
            num_beyond = len(key.running) - self._part(key)
            for sequence in reversed(key.running) if num_beyond > 0 else ():
                if num_beyond > 0 and sequence.can_pause:
                    num_beyond -= 1
                    paused.append(sequence)
        for sequence in paused:
            key = self._keys[sequence.request.key_id]
            key.running.remove(sequence)
            key.waiting.appendleft(sequence)
        self.num_running -= len(paused)
        return paused

    def begin(self, now_ns: int) -> list[AnyCompletion]:
        """Returns completions that waited and run from now on: always the next one of the key that
        runs fewest for its weight."""
        self._forget_idle(now_ns)
        begun: list[AnyCompletion] = []
        while self.num_running < self._num_places:
            key = min(
                (
                    key
                    for key in self._keys.values()
                    if key.waiting and len(key.running) < self._part(key)
                ),
                key=lambda key: len(key.running) / key.weight,
                default=None,
            )
            if key is None:
                break
            sequence = key.waiting.popleft()
            key.running.append(sequence)
            self.num_running += 1
            begun.append(sequence)
        return begun

    def _part(self, key: _Key[AnyCompletion]) -> int:
        """The number of places that the key may have."""
        if len(self._keys) < 2:
            return self._num_places
        weights = sum(other.weight for other in self._keys.values())
        return max(1, self._num_shared * key.weight // weights)

    def _forget_idle(self, now_ns: int) -> None:
        self._keys = {
            key_id: key
            for key_id, key in self._keys.items()
            if key.has_work or now_ns - key.idle_since_ns < ACTIVE_NS
        }
