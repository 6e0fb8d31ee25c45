"""Chat templates render as transformers renders them; what they raise is the request's error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="needs jinja2 (the llm extra)")

from naiad.errors import Code, NaiadError
from naiad.llm.text.chat_template import ChatTemplate, read_chat_template

CHATML = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'weird' %}{{ raise_exception('no weird role') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% generation %}{{ message['content'] }}{% endgeneration %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé <b>?"}]


def test_rendering() -> None:
    template = ChatTemplate(CHATML, {"bos_token": "<s>"})
    assert (
        template.render(CHAT) == "<s><|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHé <b>?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render(CHAT, tools=[{"name": "é<"}], add_generation_prompt=False).endswith(
        '[{"name": "é<"}]'
    )


def test_rendering_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
    from tests.unit.llm import tokenizers_made

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers_made.byte_level(), bos_token="<s>"
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path)
    template = read_chat_template(tmp_path)
    assert template is not None
    expected = tokenizer.apply_chat_template(
        CHAT, tools=[{"name": "é<"}], tokenize=False, add_generation_prompt=True
    )
    assert template.render(CHAT, tools=[{"name": "é<"}]) == expected


@pytest.mark.parametrize(
    "messages",
    [[{"role": "weird", "content": "x"}], None],
    ids=["raised by the template", "no list"],
)
def test_messages_that_do_not_fit_are_the_requests_error(messages: Any) -> None:
    with pytest.raises(NaiadError, match="chat template") as caught:
        ChatTemplate(CHATML).render(messages)
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ range(10**9) | list }}"],
)
def test_templates_are_sandboxed(source: str) -> None:
    try:
        text = ChatTemplate(source).render(CHAT)
    except NaiadError:
        return
    assert text == ""


def test_a_broken_template_is_named() -> None:
    with pytest.raises(NaiadError, match="cannot be read"):
        ChatTemplate("{% if %}")


def test_finds_templates_in_a_folder(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    config = {
        "chat_template": [
            {"name": "tool", "template": "a"},
            {"name": "default", "template": "b{{ eos_token }}"},
        ]
    }
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"eos_token": {"content": "</s>"}})
    )
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "b</s>"
    (tmp_path / "chat_template.jinja").write_text("c")
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "c"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(NaiadError, match="is not JSON"):
        read_chat_template(tmp_path)
