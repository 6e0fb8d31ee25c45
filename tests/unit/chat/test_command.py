"""What `naiad chat` and `naiad generate` make of their arguments."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from naiad.chat import command


class FakeClient:
    url = "http://127.0.0.1:1"

    def __init__(self, url: str, api_key: str = "") -> None:
        self.opened = url

    def choose_model(self, name: str) -> str:
        return name or "tiny"

    def complete(self, model: str, prompt: str, sampling: object) -> list[str]:
        return [f"{self.opened} {model}", f" {prompt}"]

    def chat(self, model: str, messages: list[object], sampling: object) -> list[str]:
        return [f"{model} got {len(messages)}"]


@pytest.fixture(autouse=True)
def fake_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ChatClient", FakeClient)


def test_generate_asks_the_default_server_without_a_target() -> None:
    result = CliRunner().invoke(command.generate, ["Once upon"])
    assert result.output == f"{command.DEFAULT_URL} tiny Once upon\n"


def test_generate_reads_the_prompt_from_standard_input() -> None:
    result = CliRunner().invoke(command.generate, ["host:9000", "-", "--model", "m"], "Once\n")
    assert result.output == "host:9000 m Once\n\n"


def test_generate_refuses_an_unquoted_prompt() -> None:
    result = CliRunner().invoke(command.generate, ["Once", "upon", "a", "time"])
    assert result.exit_code == 2
    assert "put the prompt in quotes" in result.output


def test_chat_reads_messages_from_a_pipe() -> None:
    result = CliRunner().invoke(command.chat, ["http://x"], "hello\nagain\n")
    assert result.output == "tiny got 1\ntiny got 3\n"
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("target", "is_url"),
    [
        ("http://host:1", True),
        ("host:8000", True),
        ("smollm2", False),
        ("organisation/model", False),
        ("name:latest", False),
    ],
)
def test_addresses_and_checkpoints_are_told_apart(target: str, is_url: bool) -> None:
    assert command._is_url(target) is is_url
