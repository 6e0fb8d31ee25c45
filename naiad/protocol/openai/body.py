"""The bodies of OpenAI's requests, with the fields that are read. fields.py says which others are
ignored, and refuses the rest by name.

In:  JSON. Out: structs; a wrong type or a missing field is a 400 that names it. Sampling fields
     that OpenAI lacks (top_k, min_p, ...) have the names that the engine and other servers give
     them.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from naiad.core.tensor import Buffer
from naiad.protocol.openai.error import OpenAiError, bad_request
from naiad.protocol.openai.fields import check_unread, unread_field


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Asks for random padding against those who count bytes on the way. It is TLS's concern here,
    and the text is the same."""


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and plain completions have in common; None means that it is not set."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # Fields that OpenAI does not have.
    min_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    # Fields that OpenAI does not have.
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[Any] | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    # Fields that OpenAI does not have.
    add_special_tokens: bool | None = None


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    input: str | list[str | int | list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    # Fields that OpenAI does not have.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


Body = TypeVar("Body", ChatBody, CompletionBody, EmbeddingBody, ResponsesBody)

_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (ChatBody, CompletionBody, EmbeddingBody, ResponsesBody)
}
_NAMES: dict[type, frozenset[str]] = {
    kind: frozenset(field.name for field in msgspec.structs.fields(kind)) for kind in _DECODERS
}
_UNREAD = re.compile(r"Object contains unknown field `(.*?)`")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decode_body(data: Buffer, kind: type[Body]) -> Body:
    """The body as a struct. Raises OpenAiError."""
    try:
        return _decode(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_request(f"We could not parse the JSON body of your request: {reason}") from None


def _decode(data: Buffer, kind: type[Body]) -> Body:
    """Raises OpenAiError, or what msgspec raises for text that is not JSON."""
    try:
        body: Body = _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        if _UNREAD.match(str(error)) is None:
            raise _refusal(str(error)) from None
        body = _without_unread(data, kind)  # there may be a fault of syntax behind the field
    return body


def _without_unread(data: Buffer, kind: type[Body]) -> Body:
    """The body without the fields that ask for nothing. Raises OpenAiError."""
    given, names = msgspec.json.decode(data), _NAMES[kind]
    check_unread(
        {name: value for name, value in given.items() if name not in names},
        is_chat=kind is ChatBody,
    )
    try:
        body: Body = msgspec.convert(
            {name: value for name, value in given.items() if name in names}, kind
        )
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    return body


def _refusal(message: str) -> OpenAiError:
    place = _PLACE.search(message)
    missing = _MISSING.match(message)
    inside = place[1] if place is not None else ""
    unread = _UNREAD.match(message)
    if unread is not None:
        return unread_field(f"{inside}.{unread[1]}")
    if missing is not None:
        param = f"{inside}.{missing[1]}" if inside else missing[1]
        return bad_request(
            f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
        )
    if not inside:
        return bad_request(
            "The body of your request is not what was expected: "
            f"{message.partition(' - at ')[0].replace('`', '')}."
        )
    return bad_request(
        f"Invalid type for '{inside}': {_PLACE.sub('', message).replace('`', '')}.",
        inside,
        "invalid_type",
    )


def param_names(kind: type[Body]) -> frozenset[str]:
    return _NAMES[kind]
