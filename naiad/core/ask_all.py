"""Several questions whose replies come by callback -> one reply: whether all of them said yes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

OnReply = Callable[[bool], None]
Question = Callable[[OnReply], None]


def ask_all(questions: Sequence[Question], on_reply: OnReply) -> None:
    """Calls `on_reply` once: with False at the first no, or with True when all have said yes. That
    may be before this returns."""
    replies = _Replies(len(questions), on_reply)
    for question in questions:
        question(replies.add)


class _Replies:
    def __init__(self, num_open: int, on_reply: OnReply) -> None:
        self._num_open = num_open
        self._on_reply: OnReply | None = on_reply
        if not num_open:
            self._finish(True)

    def add(self, is_yes: bool) -> None:
        self._num_open -= 1
        if not is_yes or not self._num_open:
            self._finish(is_yes)

    def _finish(self, is_yes: bool) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(is_yes)
