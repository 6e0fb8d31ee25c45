"""A conversation keeps what was said, and forgets a question whose response failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from naiad.chat.client import ChatError, ChatMessage
from naiad.chat.conversation import HELP, Conversation


class Model:
    """Repeats the last message in two pieces; fails on "fail", is interrupted on "stop"."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []

    def ask(self, messages: Sequence[ChatMessage]) -> Iterator[str]:
        self.asked.append([(message.role, message.content) for message in messages])
        yield "you said "
        if messages[-1].content == "fail":
            raise ChatError("the model is gone")
        if messages[-1].content == "stop":
            raise KeyboardInterrupt
        yield messages[-1].content


def talk(*lines: str, system: str = "") -> tuple[Model, str, bool]:
    model = Model()
    written: list[str] = []
    conversation = Conversation(model.ask, written.append, system)
    is_ok = conversation.run(iter(lines))
    return model, "".join(written), is_ok


def test_each_message_is_sent_with_what_was_said_before() -> None:
    model, written, is_ok = talk("hello\n", "  \n", "again\n", system="be brief")
    assert written == "you said hello\nyou said again\n"
    assert is_ok
    assert model.asked[1] == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", "you said hello"),
        ("user", "again"),
    ]


def test_a_failed_response_is_shown_and_its_question_forgotten() -> None:
    model, written, is_ok = talk("fail\n", "hello\n")
    assert "[the model is gone]" in written
    assert model.asked[1] == [("user", "hello")]
    assert not is_ok


def test_an_interrupted_response_leaves_the_conversation_usable() -> None:
    model, written, is_ok = talk("stop\n", "hello\n")
    assert written == "you said \n[stopped]\nyou said hello\n"
    assert model.asked[1] == [("user", "hello")]
    assert is_ok


def test_reset_keeps_only_the_instructions() -> None:
    model, _, _ = talk("hello\n", "/reset\n", "again\n", system="be brief")
    assert model.asked[1] == [("system", "be brief"), ("user", "again")]


def test_exit_and_help() -> None:
    model, written, _ = talk("/help\n", "/exit\n", "hello\n")
    assert written == HELP + "\n"
    assert model.asked == []
