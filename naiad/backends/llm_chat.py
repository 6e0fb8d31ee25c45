"""Chat templates: a conversation -> the prompt that a checkpoint was trained on.

In:  messages as OpenAI's API has them, tools, further variables. Out: text, special tokens included.
Rule: templates come with checkpoints and are not trusted: they run in jinja's sandbox, and whatever they raise is the request's error.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from naiad.errors import invalid_arg

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; the text inside is all that matters here."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    def __init__(self, templates: dict[str, str], special_tokens: dict[str, str]) -> None:
        """`templates`: `default`, and perhaps `tool_use` for conversations with tools."""
        self._sources = templates
        self._special_tokens = special_tokens
        self._compiled: dict[str, jinja2.Template] = {}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        override: str | None = None,
    ) -> str:
        """Raises NaiadError."""
        source = override or self._choose(has_tools=bool(tools))
        variables = {
            **self._special_tokens,
            **(arguments or {}),
            "messages": [_normalized(message) for message in messages],
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text: str = self._compile(source).render(variables)
        except jinja2.TemplateError as error:
            raise invalid_arg(f"the chat template refuses the messages: {error}") from None
        except Exception as error:  # arithmetic on missing fields, recursion, ...
            raise invalid_arg(f"the chat template fails on the messages: {type(error).__name__}: {error}") from None
        return text

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._sources:
            return self._sources["tool_use"]
        if "default" not in self._sources:
            raise invalid_arg("the checkpoint has no chat template; send a text prompt, or set the model's 'chat_template' parameter")
        return self._sources["default"]

    def _compile(self, source: str) -> jinja2.Template:
        template = self._compiled.get(source)
        if template is None:
            template = _environment().from_string(source)
            if source in self._sources.values():  # a client's own template is not kept
                self._compiled[source] = template
        return template


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _normalized(message: dict[str, Any]) -> dict[str, Any]:
    """Text parts become one string and a call's arguments an object: what templates are written for."""
    result = dict(message)
    content = result.get("content")
    if isinstance(content, list):
        result["content"] = "".join(_part_text(part) for part in content)
    calls = result.get("tool_calls")
    if isinstance(calls, list):
        result["tool_calls"] = [_normalized_call(call) for call in calls]
    return result


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise invalid_arg(f"a message has content of type '{kind}', this model takes text only")


def _normalized_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


# Where checkpoints keep them.


def read_chat_template(checkpoint: Path, override: Path | None = None) -> ChatTemplate:
    """Of a Hugging Face folder or a GGUF file; without any, `render` says so. Raises NaiadError for an override that cannot be read."""
    templates, special_tokens = _from_gguf(checkpoint) if checkpoint.is_file() else _from_folder(checkpoint)
    if override is not None:
        try:
            templates = {"default": override.read_text()}
        except OSError as error:
            raise invalid_arg(f"parameter 'chat_template' names '{override.name}', which cannot be read: {error.strerror}") from None
    return ChatTemplate(templates, special_tokens)


def _from_folder(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    tokens = {name: _token_text(config.get(name)) for name in SPECIAL_TOKENS}
    special_tokens = {name: text for name, text in tokens.items() if text}
    file = folder / "chat_template.jinja"
    if file.exists():
        named = {path.stem: path.read_text() for path in (folder / "additional_chat_templates").glob("*.jinja")}
        return {**named, "default": file.read_text()}, special_tokens
    return _named(config.get("chat_template")), special_tokens


def _named(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict) and "name" in entry and "template" in entry}
    return {}


def _token_text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _from_gguf(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    from naiad.llm.checkpoint.gguf_file import GgufFile  # a file that most models do not have

    metadata = GgufFile(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    special_tokens: dict[str, str] = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            special_tokens[name] = tokens[index]
    return _named(metadata.get("tokenizer.chat_template")), special_tokens
