"""W3C Trace Context: parses the headers `traceparent` and `tracestate` of a request.

As the standard demands, malformed headers are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from naiad.core.trace import RemoteParent

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE_CHARS = 512
_SAMPLED = 1


def read_parent(header: Callable[[str], str]) -> RemoteParent | None:
    """Returns None if the headers do not name a valid parent.

    `header` returns the value of a header, given its lower-case name, or "" if there is none.
    """
    match = _PARENT.fullmatch(header("traceparent").strip())
    if match is None or (match[4] is not None and match[0].startswith("00")):
        return None
    trace_id, span_id = int(match[1], 16), int(match[2], 16)
    if not trace_id or not span_id:
        return None
    state = header("tracestate").strip()
    return RemoteParent(
        trace_id,
        span_id,
        bool(int(match[3], 16) & _SAMPLED),
        state if len(state) <= _MAX_STATE_CHARS else "",
    )
