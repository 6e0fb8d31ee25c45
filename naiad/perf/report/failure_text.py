"""Formats the error of a failed request as one line."""

from __future__ import annotations

import json

_MAX_CHARS = 300


def one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def http_failure(status: int, body: bytes) -> str:
    """Returns the error message of a response.

    Triton sends {"error": "..."}. OpenAI-style servers send {"error": {"message": "..."}},
    {"message": ...} or {"detail": ...}.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    message = None
    if isinstance(document, dict):
        message = document.get("error") or document.get("message") or document.get("detail")
        if isinstance(message, dict):
            message = message.get("message") or json.dumps(message)
    if not message:
        message = body[:_MAX_CHARS].decode("utf-8", "replace") or "no reason given"
    return one_line(f"HTTP {status}: {message}")
