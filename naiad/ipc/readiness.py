"""The bytes on the socket through which the server asks whether a model is ready: one byte for the
question, one for the response. There is never more than one question without a response."""

from __future__ import annotations

QUESTION = b"?"
READY = b"y"
NOT_READY = b"n"
