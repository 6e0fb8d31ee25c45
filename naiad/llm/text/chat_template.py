"""Renders the messages of a chat with the checkpoint's own Jinja template into the kind of prompt
that the model was trained on.

In:  messages (and tools) as plain dictionaries, in OpenAI's format.
Out: text that already has the special tokens, so it is tokenized without adding any.
Rule: templates come with checkpoints and run in Jinja's sandbox, which bounds `range`; an error
      that they raise is the request's error. The sandbox does not bound time and memory, and even
      reading a template computes its constants: a server does both in a process with limits
      (naiad/backends/llm/text_work.py).
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from naiad.errors import invalid_arg

MAX_PROMPT_CHARACTERS = 16 << 20


class _Generation(Extension):
    """Renders the content of `{% generation %}`, which marks the assistant's part for training."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    def __init__(self, source: str, special_tokens: dict[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(
            format
        )
        self._special_tokens = special_tokens or {}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise invalid_arg(f"the checkpoint's chat template cannot be read: {error}") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_characters: int = MAX_PROMPT_CHARACTERS,
        **values: Any,
    ) -> str:
        """`values` are further variables that some templates use, such as `enable_thinking`."""
        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in self._template.generate(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **values},
            ):
                pieces.append(piece)
                num_characters += len(piece)
                if num_characters > max_characters:
                    raise invalid_arg(
                        f"the prompt has more than {max_characters} characters after the chat "
                        f"template, which is the most that this model accepts"
                    )
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise invalid_arg(
                f"the messages do not fit the model's chat template: {error}"
            ) from error
        return "".join(pieces)


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Reads chat_template.jinja, or the template in tokenizer_config.json; of several it reads the
    one named "default"."""
    config = _read_config(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = path.read_text() if path.exists() else config.get("chat_template")
    if isinstance(source, list):
        named = {
            entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)
        }
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, _special_tokens(config))


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Reads bos_token and the others, each a string or an object with its content."""
    tokens: dict[str, str] = {}
    for key, value in config.items():
        if key.endswith("_token") and isinstance(value, dict):
            value = value.get("content")
        if key.endswith("_token") and isinstance(value, str):
            tokens[key] = value
    return tokens


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise invalid_arg(
            f"{path.name} of checkpoint '{path.parent.name}' is not JSON: {error}"
        ) from error
    return value if isinstance(value, dict) else {}


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    """Replaces Jinja's own filter, which escapes for HTML; models were not trained on that."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
