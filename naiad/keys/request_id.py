"""The id of a request, with which a line of a proxy's log is found again here: `X-Request-Id`.

Rule: an id that could break a line of a log or of a head is not taken over.
"""

from __future__ import annotations

import re
import secrets

REQUEST_ID_HEADER = "x-request-id"
_ID = re.compile(rb"[!-~]{1,128}")


def is_request_id(text: bytes) -> bool:
    return _ID.fullmatch(text) is not None


def read_request_id(text: bytes | None) -> str:
    """Empty for a text that is no id."""
    return text.decode("ascii") if text is not None and is_request_id(text) else ""


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"
