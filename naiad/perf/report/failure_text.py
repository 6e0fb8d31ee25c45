"""What a server said when it refused a request, as one line."""

from __future__ import annotations

import json

_MAX_CHARS = 300


def one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def http_failure(status: int, body: bytes) -> str:
    """Triton answers {"error": "..."}, OpenAI-style servers {"error": {"message": "..."}} or
    {"message"/"detail": ...}."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    words = None
    if isinstance(document, dict):
        words = document.get("error") or document.get("message") or document.get("detail")
        if isinstance(words, dict):
            words = words.get("message") or json.dumps(words)
    if not words:
        words = body[:_MAX_CHARS].decode("utf-8", "replace") or "no reason given"
    return one_line(f"HTTP {status}: {words}")
