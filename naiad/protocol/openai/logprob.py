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
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
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


class PromptLogprob(msgspec.Struct):
    """As vLLM writes it. The rank is known of the tokens that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


def prompt_logprobs(entries: list[TokenLogprob]) -> list[dict[str, PromptLogprob] | None]:
    """One for each token of the prompt; the first token follows nothing."""
    found: list[dict[str, PromptLogprob] | None] = []
    for entry in entries:
        ranked = {
            str(top.token_id): PromptLogprob(max(top.logprob, _LOWEST), rank, top.text)
            for rank, top in enumerate(entry.top, 1)
        }
        own = PromptLogprob(max(entry.logprob, _LOWEST), None, entry.text)
        found.append({str(entry.token_id): own} | ranked if found else None)
    return found


def completion_logprobs(
    entries: list[TokenLogprob], offset: int, *, has_first: bool = False
) -> CompletionLogprobs:
    """`offset` is where the first token begins, in characters of the choice's text. With
    `has_first`, that is the first token of the prompt, which follows nothing."""
    found = CompletionLogprobs()
    for entry in entries:
        found.tokens.append(_name(entry))
        found.token_logprobs.append(max(entry.logprob, _LOWEST))
        found.top_logprobs.append(
            {_name(top): max(top.logprob, _LOWEST) for top in (*entry.top, entry)}
        )
        found.text_offset.append(offset)
        offset += len(entry.text)
    if has_first and entries:
        found.token_logprobs[0] = found.top_logprobs[0] = None
    return found


def _name(entry: TokenLogprob) -> str:
    """The text of a token; a token that is part of a character is written as `bytes:\\xe2`, as
    OpenAI does."""
    return (
        entry.text
        if "\ufffd" not in entry.text
        else "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.raw)
    )
