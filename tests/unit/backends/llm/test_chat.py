"""Tests of chat templates: rendered conversations, where checkpoints keep templates, and that no
template can do harm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from naiad.errors import NaiadError

pytest.importorskip("jinja2")

from naiad.backends.llm.chat import ChatTemplates, read_chat_templates
from naiad.backends.llm.text_process import TextProcesses

SIMPLE = (
    "{% for m in messages %}{{ bos_token }}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def processes() -> Iterator[TextProcesses]:
    processes = TextProcesses()
    yield processes
    processes.close()


class Rendering:
    """Templates, and the processes that render them."""

    def __init__(self, templates: ChatTemplates, processes: TextProcesses) -> None:
        self._templates = templates
        self._processes = processes

    def render(self, *arguments: Any, **named: Any) -> str:
        return self._processes.run(self._templates.work(*arguments, **named)).text


Template = Callable[..., Rendering]


@pytest.fixture
def template(processes: TextProcesses) -> Template:
    return lambda text=SIMPLE: Rendering(
        ChatTemplates({"default": text}, {"bos_token": "<s>"}, processes), processes
    )


def read_templates(folder: Path, processes: TextProcesses, own: Path | None = None) -> Rendering:
    return Rendering(read_chat_templates(folder, processes, own), processes)


def test_renders_messages_with_special_tokens(template: Template) -> None:
    assert template().render([{"role": "user", "content": "Hi"}]) == "<s>[user]Hi[assistant]"
    assert (
        template().render([{"role": "user", "content": "Hi"}], add_generation_prompt=False)
        == "<s>[user]Hi"
    )


def test_text_parts_become_one_string(template: Template) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template().render([{"role": "user", "content": parts}]) == "<s>[user]ab[assistant]"


def test_arguments_of_tool_calls_are_objects(template: Template) -> None:
    text = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Zürich"}'}}
    assert (
        template(text).render([{"role": "assistant", "content": None, "tool_calls": [call]}])
        == '{"city": "Zürich"}'
    )


def test_chats_with_tools_use_the_tool_template(processes: TextProcesses) -> None:
    sources = {"default": "plain", "tool_use": "{{ tools[0].name }}"}
    both = Rendering(ChatTemplates(sources, {}, processes), processes)
    assert both.render([]) == "plain"
    assert both.render([], tools=[{"name": "search"}]) == "search"


def test_generation_blocks_and_loop_controls(template: Template) -> None:
    text = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert template(text).render([{"content": "a"}, {"content": "b"}]) == "a"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].role.missing.field }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for %}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_failing_template_is_the_requests_error(template: Template, text: str) -> None:
    with pytest.raises(NaiadError, match="chat template") as rejection:
        template(text).render([{"role": "user", "content": "x"}])
    assert rejection.value.code.name == "INVALID_ARG"


def test_rejects_messages_if_the_checkpoint_has_no_template(
    tmp_path: Path, processes: TextProcesses
) -> None:
    with pytest.raises(NaiadError, match="has no chat template"):
        read_templates(tmp_path, processes).render([])


def test_finds_templates_wherever_checkpoints_keep_them(
    tmp_path: Path, processes: TextProcesses
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "chat_template": SIMPLE})
    )
    assert read_templates(tmp_path, processes).render([]) == "[assistant]"
    named = {
        "chat_template": [
            {"name": "default", "template": "d"},
            {"name": "tool_use", "template": "t"},
        ]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert read_templates(tmp_path, processes).render([], tools=[{}]) == "t"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_templates(tmp_path, processes).render([]) == "file"
    (tmp_path / "own.jinja").write_text("own")
    assert read_templates(tmp_path, processes, tmp_path / "own.jinja").render([]) == "own"
    with pytest.raises(NaiadError, match="cannot be read"):
        read_templates(tmp_path, processes, tmp_path / "absent.jinja")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_content_that_would_be_fetched_is_refused(kind: str) -> None:
    """Nothing opens a URL of a client: the request fails before the template sees it."""
    templates = ChatTemplates({"default": ""}, {}, Mock(spec=TextProcesses))
    part = {"type": kind, kind: {"url": "http://169.254.169.254/latest/meta-data"}}
    with pytest.raises(NaiadError, match=f"content of type '{kind}', but this model accepts only"):
        templates.work([{"role": "user", "content": [part]}])
