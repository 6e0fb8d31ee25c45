"""--grpc-header-forward-pattern: request metadata whose names match become parameters of the
inference request."""

from __future__ import annotations

import re

from naiad.core.request import InferRequest
from naiad.errors import invalid_arg

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
    def __init__(self, pattern: str) -> None:
        # Triton ignores case unless the pattern begins with (?-i), which Python writes differently.
        is_sensitive = pattern.startswith("(?-i)")
        self._pattern = (
            re.compile(pattern.removeprefix("(?-i)"), 0 if is_sensitive else re.IGNORECASE)
            if pattern
            else None
        )
        self.is_on = self._pattern is not None

    def apply(self, request: InferRequest, metadata: dict[str, str]) -> None:
        if self._pattern is None:
            return
        forwarded = {name: value for name, value in metadata.items() if self._pattern.search(name)}
        for name in forwarded:
            if name.startswith("triton_") or name in _RESERVED:
                raise invalid_arg(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
        if forwarded:
            request.parameters = {**request.parameters, **forwarded}
