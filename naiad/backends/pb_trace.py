"""`pb_utils.InferenceTrace`: the trace that a request belongs to, handed on to BLS calls."""

from __future__ import annotations


class InferenceTrace:
    __slots__ = ("_context",)

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str | None:
        """The W3C trace context as JSON; None when the request is not traced."""
        return self._context or None
