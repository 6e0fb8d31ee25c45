"""The states of a model version, and which state may follow which.

The names are Triton's, because the repository index shows them.
"""

from __future__ import annotations

import enum

import msgspec


class State(enum.StrEnum):
    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


FOLLOWS: dict[State, frozenset[State]] = {
    State.UNKNOWN: frozenset({State.LOADING}),
    State.LOADING: frozenset({State.READY, State.UNAVAILABLE}),
    # A version that serves stays READY while its new copy loads, so LOADING never follows READY.
    State.READY: frozenset({State.READY, State.UNLOADING}),
    State.UNLOADING: frozenset({State.UNAVAILABLE, State.LOADING, State.READY}),
    State.UNAVAILABLE: frozenset({State.LOADING}),
}


class VersionStatus(msgspec.Struct):
    state: State = State.UNKNOWN
    reason: str = ""

    def become(self, state: State, reason: str = "") -> None:
        if state not in FOLLOWS[self.state]:
            raise AssertionError(f"a version that is {self.state} cannot become {state}")
        self.state = state
        self.reason = reason
