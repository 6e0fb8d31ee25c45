"""Text from model code, made fit for a message: a plain `str` that UTF-8 can carry."""

from __future__ import annotations


def wire_text(text: str) -> str:
    """Lone surrogates (from undecodable file names, say) become question marks; numpy's and other
    `str` subclasses become `str`."""
    return str(text) if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
