"""Log-probabilities as OpenAI writes them: one object per token for chat, parallel lists for
completions."""

from __future__ import annotations

import msgspec

from naiad.ipc.generation_call import TokenLogprob

_LOWEST = -9999.0
"""What is written for minus infinity, which JSON does not have."""


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    text_offset: list[int] = []


def chat_logprobs(entries: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ChatLogprob(
                entry.text,
                max(entry.logprob, _LOWEST),
                list(entry.raw),
                [
                    TopLogprob(top.text, max(top.logprob, _LOWEST), list(top.raw))
                    for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: list[TokenLogprob], offset: int) -> CompletionLogprobs:
    """`offset` is where the first token begins, in characters of the choice's text."""
    found = CompletionLogprobs()
    for entry in entries:
        found.tokens.append(_name(entry))
        found.token_logprobs.append(max(entry.logprob, _LOWEST))
        found.top_logprobs.append(
            {_name(top): max(top.logprob, _LOWEST) for top in (*entry.top, entry)}
        )
        found.text_offset.append(offset)
        offset += len(entry.text)
    return found


def _name(entry: TokenLogprob) -> str:
    """The text of a token; a token that is part of a character is written as `bytes:\\xe2`, as
    OpenAI does."""
    return (
        entry.text
        if "\ufffd" not in entry.text
        else "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.raw)
    )
