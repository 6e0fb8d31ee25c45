"""Makes text from model code fit for a message: a plain `str` that can be encoded as UTF-8."""

from __future__ import annotations


def wire_text(text: str) -> str:
    """Converts subclasses of `str`, such as numpy's, to `str`, and lone surrogates to "?".

    Lone surrogates come from file names that are not valid UTF-8.
    """
    return str(text) if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
