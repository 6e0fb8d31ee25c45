"""`pb_utils.InferenceTrace`: the trace that a request belongs to, handed on to BLS calls."""

from __future__ import annotations


class InferenceTrace:
    __slots__ = ("_context", "_id")

    def __init__(self, context: str = "", id: int = 0) -> None:
        """Models get theirs from `request.trace()`. `id`: of the trace at the server; 0 when the
        request is not traced."""
        self._context = context
        self._id = id

    @property
    def id(self) -> int:
        return self._id

    def get_context(self) -> str | None:
        """The W3C trace context as JSON; None when the request is not traced."""
        return self._context or None
