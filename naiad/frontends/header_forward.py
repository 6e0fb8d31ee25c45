"""`--http-header-forward-pattern` and `--grpc-header-forward-pattern`: headers whose names match
become string parameters of the inference request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from naiad.core.request import InferRequest, ParameterValue
from naiad.errors import invalid_arg

_CASE_SENSITIVE = "(?-i)"
_RESERVED = frozenset(
    (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    )
)


class HeaderForward:
    def __init__(self, pattern: str, secrets: Iterable[str] = ()) -> None:
        """An empty pattern forwards nothing. `secrets` are lower-case names of headers that hold
        API keys: no model sees them."""
        self._secrets = frozenset(secrets)
        # Triton ignores case unless the pattern begins with (?-i), which Python writes differently.
        flags = 0 if pattern.startswith(_CASE_SENSITIVE) else re.IGNORECASE
        self._pattern = re.compile(pattern.removeprefix(_CASE_SENSITIVE), flags)
        self.is_on = bool(pattern)

    def select(self, headers: Iterable[tuple[str, str]]) -> dict[str, ParameterValue]:
        """The headers to forward. Raises NaiadError for a match that Triton reserves."""
        if not self.is_on:
            return {}
        selected: dict[str, ParameterValue] = {}
        for name, value in headers:
            if self._pattern.search(name) is None or name.lower() in self._secrets:
                continue
            if name.startswith("triton_") or name in _RESERVED:
                raise invalid_arg(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            selected[name] = value
        return selected

    def apply(self, request: InferRequest, headers: dict[str, str]) -> None:
        """Adds the headers to forward to the request's parameters. Raises NaiadError."""
        if self.is_on and (selected := self.select(headers.items())):
            request.parameters = {**request.parameters, **selected}
