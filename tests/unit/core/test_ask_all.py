from __future__ import annotations

import pytest

from naiad.core.ask_all import OnReply, ask_all


class Asked:
    """Questions that wait until the test replies."""

    def __init__(self, count: int) -> None:
        self.open: list[OnReply] = []
        self.replies: list[bool] = []
        ask_all([self.open.append] * count, self.replies.append)


def test_no_question_is_a_yes() -> None:
    assert Asked(0).replies == [True]


def test_all_must_say_yes() -> None:
    asked = Asked(3)
    for on_reply in asked.open[:2]:
        on_reply(True)
    assert asked.replies == []
    asked.open[2](True)
    assert asked.replies == [True]


def test_the_first_no_is_the_reply_and_later_replies_have_no_effect() -> None:
    asked = Asked(3)
    asked.open[1](False)
    assert asked.replies == [False]
    asked.open[0](True)
    asked.open[2](False)
    assert asked.replies == [False]


@pytest.mark.parametrize("is_yes", [True, False])
def test_replies_may_come_at_once(is_yes: bool) -> None:
    replies: list[bool] = []
    ask_all([lambda on_reply: on_reply(is_yes)] * 2, replies.append)
    assert replies == [is_yes]
