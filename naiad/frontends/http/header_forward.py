"""Header forwarding: headers whose names match `--http-header-forward-pattern` become string
parameters of the request."""

from __future__ import annotations

import re
from collections.abc import Callable

from naiad.core.request import ParameterValue
from naiad.errors import invalid_arg
from naiad.transport.http1.head import Head

_RESERVED = frozenset(
    (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data_output",
        "headers",
    )
)
_CASE_SENSITIVE = "(?-i)"


def build_header_forwarder(pattern: str) -> Callable[[Head], dict[str, ParameterValue]] | None:
    """None when nothing is forwarded. The function raises NaiadError for a header that may not be
    forwarded."""
    if not pattern:
        return None
    if pattern.startswith(_CASE_SENSITIVE):
        matcher = re.compile(pattern.removeprefix(_CASE_SENSITIVE))
    else:
        matcher = re.compile(pattern, re.IGNORECASE)

    def forward(head: Head) -> dict[str, ParameterValue]:
        parameters: dict[str, ParameterValue] = {}
        for key, value in head.headers.items():
            name = head.names[key].decode("latin-1")
            if matcher.search(name) is None:
                continue
            if name.startswith("triton_") or name in _RESERVED:
                raise invalid_arg(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            parameters[name] = value.decode("utf-8", "replace")
        return parameters

    return forward
