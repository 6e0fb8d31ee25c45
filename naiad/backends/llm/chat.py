"""Chat prompts of a served model: finds the checkpoint's templates, chooses one, and prepares what
clients send for it.

In:  messages as in OpenAI's API, tools, further variables. Out: the work of a text process, which
     renders them to text with special tokens, under limits.
Rule: any failure of a template is the request's error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from naiad.backends.llm.text_process import TextProcesses
from naiad.backends.llm.text_work import PromptLimit, ReadTemplateWork, RenderWork
from naiad.errors import invalid_arg
from naiad.llm.text.chat_template import MAX_PROMPT_CHARACTERS

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "max_characters", "self"})


class ChatTemplates:
    def __init__(
        self, sources: dict[str, str], special_tokens: dict[str, str], processes: TextProcesses
    ) -> None:
        """`sources` has `default` and may have `tool_use`, for conversations with tools. Raises
        NaiadError for a source that cannot be read."""
        self._special_tokens = special_tokens
        self._sources = sources
        for source in sources.values():
            processes.run(ReadTemplateWork(source))

    def work(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        override: str | None = None,
        limit: PromptLimit | None = None,
        *,
        continue_final_message: bool = False,
    ) -> RenderWork:
        """With a limit, the work ends with the tokens of the text. Raises NaiadError."""
        source = override or self._choose(has_tools=bool(tools))
        for name in arguments or {}:
            if name in RESERVED:
                raise invalid_arg(f"'{name}' cannot be an argument of the chat template")
        return RenderWork(
            source,
            self._special_tokens,
            [_normalized(message) for message in messages],
            tools or None,
            add_generation_prompt,
            arguments or {},
            MAX_PROMPT_CHARACTERS if limit is None else limit.max_bytes,
            limit,
            continue_final_message,
        )

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._sources:
            return self._sources["tool_use"]
        if "default" not in self._sources:
            raise invalid_arg(
                "the checkpoint has no chat template; send a text prompt, "
                "or set the model's 'chat_template' parameter"
            )
        return self._sources["default"]


def _normalized(message: dict[str, Any]) -> dict[str, Any]:
    """Joins text parts into one string and decodes the arguments of tool calls, because templates
    expect a string and an object."""
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
    raise invalid_arg(f"a message has content of type '{kind}', but this model accepts only text")


def _normalized_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


# Templates in checkpoints.


def read_chat_templates(
    checkpoint: Path, processes: TextProcesses, override: Path | None = None
) -> ChatTemplates:
    """Reads the templates of a Hugging Face folder or a GGUF file. If there are none, `work`
    raises the error. Raises NaiadError for an override that cannot be read."""
    templates, special_tokens = (
        _from_gguf(checkpoint) if checkpoint.is_file() else _from_folder(checkpoint)
    )
    if override is not None:
        try:
            templates = {"default": override.read_text()}
        except OSError as error:
            raise invalid_arg(
                f"parameter 'chat_template' names '{override.name}', "
                f"which cannot be read: {error.strerror}"
            ) from None
    return ChatTemplates(templates, special_tokens, processes)


def _from_folder(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    tokens = {name: _token_text(config.get(name)) for name in SPECIAL_TOKENS}
    special_tokens = {name: text for name, text in tokens.items() if text}
    file = folder / "chat_template.jinja"
    if file.exists():
        named = {
            path.stem: path.read_text()
            for path in (folder / "additional_chat_templates").glob("*.jinja")
        }
        return {**named, "default": file.read_text()}, special_tokens
    return _named(config.get("chat_template")), special_tokens


def _named(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {
            entry["name"]: entry["template"]
            for entry in value
            if isinstance(entry, dict) and "name" in entry and "template" in entry
        }
    return {}


def _token_text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _from_gguf(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    from naiad.llm.checkpoint.gguf_file import GgufFile  # most models are not GGUF files

    metadata = GgufFile(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    special_tokens: dict[str, str] = {}
    for name, key in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            special_tokens[name] = tokens[index]
    return _named(metadata.get("tokenizer.chat_template")), special_tokens
