"""Who sends a request: the API key that it came with, and what the key allows.

In:  made by naiad.keys from a stored key. Out: read by frontends, which show a key only its models,
     and by whoever treats keys differently (priority, shared memory, limits).
Rule: an Identity never contains a secret, so it may be logged and sent to models.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from naiad.core.request import ParameterValue

MAX_CACHED_NAMES = 1024


class KeyLimits(msgspec.Struct, frozen=True):
    """None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None
    tokens_per_day: int | None = None

    @property
    def has_any(self) -> bool:
        return self != NO_LIMITS

    @property
    def has_tokens(self) -> bool:
        return self.tokens_per_minute is not None or self.tokens_per_day is not None


NO_LIMITS = KeyLimits()


_SHOWN = "api_key_"
"""What the names of parameters begin with that tell a model who asked."""


class Identity:
    __slots__ = (
        "_has_all_models",
        "_pattern",
        "_visible",
        "key_id",
        "limits",
        "metadata",
        "models",
        "name",
        "priority",
        "scopes",
        "weight",
    )

    def __init__(
        self,
        key_id: str,
        name: str = "",
        *,
        scopes: frozenset[str] = frozenset(),
        models: tuple[str, ...] = ("*",),
        limits: KeyLimits = NO_LIMITS,
        priority: int = 0,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.key_id = key_id
        """The public part of the key, which may appear in logs and metrics."""
        self.name = name
        self.scopes = scopes
        self.models = models
        """Patterns of model names, as in a shell: `llama*`."""
        self.limits = limits
        self.priority = priority
        self.weight = priority + 1
        """The key's part of a model that others wait for, too."""
        self.metadata = metadata or {}
        self._has_all_models = "*" in models
        self._pattern = re.compile("|".join(map(fnmatch.translate, models)))
        self._visible: dict[str, bool] = {}

    def may_see(self, model_name: str) -> bool:
        """True if a pattern of the key matches the name. A model that the key may not see does not
        exist for it."""
        if self._has_all_models:
            return True
        is_visible = self._visible.get(model_name)
        if is_visible is None:
            if len(self._visible) >= MAX_CACHED_NAMES:
                self._visible.clear()
            is_visible = self._pattern.match(model_name) is not None
            self._visible[model_name] = is_visible
        return is_visible

    def shown_to_model(self, parameters: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Returns the parameters of a request to a model that asks who sent it. Parameters of these
        names that the client sent itself are left out."""
        own = {name: value for name, value in parameters.items() if not name.startswith(_SHOWN)}
        shown = {f"{_SHOWN}{name}": value for name, value in self.metadata.items()}
        return {**own, **shown, f"{_SHOWN}id": self.key_id}


def common_identity(identities: Iterable[Identity | None]) -> Identity | None:
    """Returns None if the requests came with different keys, or if one of them came without."""
    first: Identity | None = None
    for identity in identities:
        if identity is None or (first is not None and identity.key_id != first.key_id):
            return None
        first = identity
    return first
