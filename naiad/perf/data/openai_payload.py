"""Builds the payloads of OpenAI-style requests and reads their responses as TokenChunks.

Rule: only fields that all such servers have in common are used. Other fields come from
      --extra-inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.perf.data.prompts import Prompt
from naiad.perf.load.load import ResponseFailureError
from naiad.perf.measure.token_metrics import TokenChunk
from naiad.perf.report.failure_text import one_line
from naiad.settings.option import OptionError


def payload(
    endpoint: str, model: str, prompt: Prompt, *, is_streaming: bool, extra: dict[str, Any]
) -> dict[str, Any]:
    document: dict[str, Any] = {"model": model}
    kind = endpoint.rstrip("/")
    if kind.endswith("embeddings"):
        return document | {"input": prompt.text} | extra
    if kind.endswith("chat/completions"):
        document["messages"] = [{"role": "user", "content": prompt.text}]
    else:
        document["prompt"] = prompt.text
    if prompt.max_tokens:
        document["max_tokens"] = prompt.max_tokens
    if is_streaming:
        document |= {"stream": True, "stream_options": {"include_usage": True}}
    return document | extra


def extra_fields(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parses the texts name:value of --extra-inputs. A value that is valid JSON is decoded."""
    fields: dict[str, Any] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise OptionError(f"--extra-inputs: expected name:value, got '{text}'")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


class _Text(msgspec.Struct):
    """The fields of a delta or a message that contain text."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = -1
    completion_tokens: int = -1


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def make_digest(*, keeps_text: bool, keeps_raw: bool) -> Callable[[Any], TokenChunk | None]:
    """Returns a function that reads an event of a stream, or (head, body) of a single response."""

    def digest(response: Any) -> TokenChunk | None:
        is_whole = isinstance(response, tuple)
        event: bytes = response[1] if is_whole else response
        if event == b"[DONE]":
            return None
        try:
            decoded = _decode(event)
        except msgspec.DecodeError as error:
            start = event[:80].decode("utf-8", "replace")
            raise ResponseFailureError(
                one_line(f"a response that cannot be decoded: {error}: {start}")
            ) from None
        if decoded.error is not None:
            message = decoded.error
            if isinstance(message, dict):
                message = message.get("message", message)
            raise ResponseFailureError(one_line(str(message)))
        text = "".join(_text_of(choice) for choice in decoded.choices)
        has_text = bool(text) or any(
            (choice.delta or choice.message or _Text()).tool_calls for choice in decoded.choices
        )
        usage = decoded.usage or _Usage()
        return TokenChunk(
            int(has_text),
            usage.prompt_tokens,
            usage.completion_tokens,
            text if keeps_text else "",
            ((None, event) if is_whole else event) if keeps_raw else b"",
        )

    return digest


def _text_of(choice: _Choice) -> str:
    part = choice.delta or choice.message
    if part is None:
        return choice.text or ""
    return part.content or part.reasoning_content or part.reasoning or ""
