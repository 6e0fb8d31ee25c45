"""Makes text from model code fit for a message: a plain `str` that can be encoded as UTF-8."""

from __future__ import annotations

from typing import Any


def as_text(value: object) -> Any:
    """Decodes UTF-8 bytes, which Triton's API accepts wherever it accepts a `str`. Any other value
    is returned as it is. Raises UnicodeDecodeError."""
    return value.decode() if isinstance(value, (bytes, bytearray)) else value


def wire_text(text: str) -> str:
    """Converts subclasses of `str`, such as numpy's, to `str`, and lone surrogates to "?".

    Lone surrogates come from file names that are not valid UTF-8.
    """
    return str(text) if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
