"""POST /v1/completions: one or several prompts -> a GenerationCall each; their events -> one
response, or chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.ipc.generation_call import CompletionPiece, GenerationCall, GenerationEvent, TokenLogprob
from naiad.protocol.openai.body import CompletionBody
from naiad.protocol.openai.error import OpenAiError, bad_request
from naiad.protocol.openai.logprob import CompletionLogprobs, completion_logprobs
from naiad.protocol.openai.response_format import read_format
from naiad.protocol.openai.response_writer import (
    DONE,
    ChunkFrame,
    Usage,
    UsageCount,
    encode,
    encode_failure,
    new_id,
)
from naiad.protocol.openai.sampling import completion_sampling, num_kept

MAX_PROMPTS = 256
MAX_COMPLETIONS = 256
"""Maximum number of completions of one request: its prompts times n."""


class CompletionChoice(msgspec.Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class TextCompletion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


def decode_calls(
    body: CompletionBody, defaults: Mapping[str, Any], *, is_streamed: bool
) -> list[GenerationCall]:
    """Raises OpenAiError."""
    if body.suffix:
        raise bad_request("'suffix' is not supported", "suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request("'best_of' is not supported, use 'n'", "best_of")
    prompts = read_prompts(body)
    parameters, grammar = completion_sampling(body, defaults), read_format(body)
    if len(prompts) * parameters.n > MAX_COMPLETIONS:
        raise bad_request(
            f"'prompt' has {len(prompts)} entries and 'n' is {parameters.n}, which makes "
            f"{len(prompts) * parameters.n} completions, expected at most {MAX_COMPLETIONS}",
            "n",
        )
    group = new_id("prompts-") if len(prompts) > 1 else ""
    return [
        GenerationCall(
            prompt=prompt,
            add_special_tokens=body.add_special_tokens is not False,
            num_kept=num_kept(body),
            parameters=parameters,
            grammar=grammar,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            group=group,
            is_streamed=is_streamed,
        )
        for prompt in prompts
    ]


def read_prompts(body: CompletionBody) -> list[str | list[int]]:
    """The prompts in a text, a list of texts, a list of tokens, or a list of such lists. Raises
    OpenAiError."""
    given = body.prompt
    prompts: list[str | list[int]]
    if isinstance(given, str):
        prompts = [given]
    elif given and all(isinstance(part, int) for part in given):
        prompts = [[part for part in given if isinstance(part, int)]]
    else:
        prompts = [part for part in given if not isinstance(part, int)]
        if len(prompts) != len(given):
            raise bad_request(
                "Invalid type for 'prompt': texts or lists of tokens and single tokens cannot be "
                "mixed.",
                "prompt",
                "invalid_type",
            )
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise bad_request(
            f"'prompt' has {len(prompts)} entries, expected 1 to {MAX_PROMPTS}", "prompt"
        )
    if body.echo and (
        body.logprobs is not None or not all(isinstance(prompt, str) for prompt in prompts)
    ):
        raise bad_request("'echo' is supported for text prompts without 'logprobs' only", "echo")
    return prompts


def echoes(body: CompletionBody, calls: list[GenerationCall]) -> list[str]:
    """The text that comes before the completions of each call."""
    return [call.prompt if body.echo and isinstance(call.prompt, str) else "" for call in calls]


class StreamedCompletion:
    """A GenerationWriter."""

    def __init__(
        self,
        model: str,
        created_s: int,
        n: int,
        echoes: list[str],
        *,
        has_usage: bool,
        is_counted: bool = False,
    ) -> None:
        self._frame = ChunkFrame(
            new_id("cmpl-"), "text_completion", created_s, model, has_usage=has_usage
        )
        self._n = n
        self._echoes = echoes
        self._usage = UsageCount() if has_usage else None
        self._is_counted = is_counted
        self._offsets: dict[int, int] = {}

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        if self._usage is not None:
            self._usage.add(call_index, event)
            if self._is_counted:
                self._frame.show(self._usage.total())
        return b"".join([self._chunk(call_index, piece) for piece in event.pieces])

    def end(self) -> bytes:
        return DONE if self._usage is None else self._frame.usage_chunk(self._usage.total()) + DONE

    def fail(self, error: OpenAiError) -> bytes:
        return encode_failure(error)

    def _chunk(self, call_index: int, piece: CompletionPiece) -> bytes:
        index = call_index * self._n + piece.index
        text = piece.text if index in self._offsets else self._echoes[call_index] + piece.text
        offset = self._offsets.setdefault(index, 0)
        logprobs = None
        if piece.logprobs:
            logprobs = completion_logprobs(piece.logprobs, offset)
            self._offsets[index] = offset + sum(len(entry.text) for entry in piece.logprobs)
        elif not text and piece.finish_reason is None:
            return b""
        return self._frame.chunk(CompletionChoice(text, index, logprobs, piece.finish_reason))


class WholeCompletion:
    """A GenerationWriter."""

    def __init__(self, model: str, created_s: int, n: int, echoes: list[str]) -> None:
        self._model = model
        self._created_s = created_s
        self._n = n
        self._echoes = echoes
        self._usage = UsageCount()
        self._choices: dict[int, CompletionChoice] = {}
        self._logprobs: dict[int, list[TokenLogprob]] = {}

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        self._usage.add(call_index, event)
        for piece in event.pieces:
            index = call_index * self._n + piece.index
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = CompletionChoice(self._echoes[call_index], index)
            choice.text += piece.text
            choice.finish_reason = piece.finish_reason or choice.finish_reason
            if piece.logprobs:
                self._logprobs.setdefault(index, []).extend(piece.logprobs)
        return b""

    def end(self) -> bytes:
        for index, entries in self._logprobs.items():
            self._choices[index].logprobs = completion_logprobs(entries, 0)
        choices = [choice for _, choice in sorted(self._choices.items())]
        return encode(
            TextCompletion(
                new_id("cmpl-"),
                "text_completion",
                self._created_s,
                self._model,
                choices,
                self._usage.total(),
            )
        )

    def fail(self, error: OpenAiError) -> bytes:
        return b""  # not begun before it is complete
