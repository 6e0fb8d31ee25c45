"""The fields of OpenAI's and vLLM's requests that naiad.protocol.openai.body does not read.

Rule: a field that asks for something is honoured or refused by name. A field is only ignored when
      it changes nothing here: it is listed in HARMLESS, or it has the value that it has when it is
      left out.
"""

from __future__ import annotations

from typing import Any

from naiad.protocol.openai.error import OpenAiError, bad_request

HARMLESS = {
    "user": "who asks; the server's keys tell that",
    "safety_identifier": "who asks",
    "metadata": "a label; nothing is stored that it could be attached to",
    "store": "nothing is stored, which docs/openai.md says",
    "service_tier": "a price",
    "prompt_cache_key": "the prefix cache finds equal prompts without it",
    "prompt_cache_retention": "how long a prompt may stay in a cache; the text is the same",
    "prompt_cache_options": "as prompt_cache_retention",
    "prediction": "a guess of the text, which makes OpenAI faster; the text is the same",
    "session_id": "a label",
    "request_id": "a label; the response's id is the server's own",
    "stream_interval": "how a stream is cut into chunks; the text is the same",
    "media_io_kwargs": "about images and sounds, which are refused themselves",
    "mm_processor_kwargs": "about images and sounds, which are refused themselves",
    "guided_decoding_backend": "which library masks the tokens; the grammar is the same",
    "length_penalty": "about beam search, which is refused itself",
    "truncation_side": "about truncate_prompt_tokens",
    "max_tool_calls": "about tools that the server runs; it runs none",
    "truncation": "a prompt that is too long is refused, so nothing is cut in silence",
    "return_token_offsets": "about vLLM's /render routes",
    "return_assistant_tokens_mask": "about vLLM's /render routes",
}
"""Field -> why it asks for nothing that could be missing from the response."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "include_reasoning": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "thinking_token_budget": (-1,),
    "verbosity": ("medium",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
}
"""Values, beside null, that ask for nothing. Of all other fields false, 0 and empty values do."""
_OF_CHAT: dict[str, tuple[Any, ...]] = {"add_special_tokens": (False,)}
_HARMLESS_INCLUDES = frozenset(
    {
        "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
        "web_search_call.action.sources", "message.input_image.image_url",
        "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    }
)  # fmt: skip
"""Parts of items that no response of this server has."""


def check_unread(fields: dict[str, Any], *, is_chat: bool = False) -> None:
    """Checks the fields that nobody reads. Raises OpenAiError."""
    for name, value in fields.items():
        if value is None or name in HARMLESS or _is_neutral(name, value, is_chat=is_chat):
            continue
        raise unread_field(name)


def _is_neutral(name: str, value: Any, *, is_chat: bool) -> bool:
    if name == "include":
        return isinstance(value, list) and all(
            isinstance(part, str) and part in _HARMLESS_INCLUDES for part in value
        )
    values = (is_chat and _OF_CHAT.get(name)) or _NEUTRAL.get(name)
    return not value if values is None else value in values


def unread_field(name: str) -> OpenAiError:
    shown = name if len(name) <= 80 else f"{name[:80]}..."
    return bad_request(
        f"Unrecognized request argument supplied: '{shown}' is not supported here, and the request "
        "may not mean the same without it.",
        shown,
        "unsupported_parameter",
    )
