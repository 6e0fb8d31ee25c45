"""POST /v1/completions: one or several prompts -> a GenerationCall each; their events -> one
response, or chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from naiad.ipc.generation_call import CompletionPiece, GenerationCall, GenerationEvent, TokenLogprob
from naiad.protocol.openai.body import CompletionBody
from naiad.protocol.openai.error import OpenAiError, bad_request
from naiad.protocol.openai.logprob import (
    CompletionLogprobs,
    PromptLogprob,
    completion_logprobs,
    prompt_logprobs,
)
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
from naiad.protocol.openai.sampling import (
    completion_sampling,
    num_kept,
    prompt_alternatives,
    wants_prompt_only,
)

MAX_PROMPTS = 256
MAX_COMPLETIONS = 256
"""Maximum number of completions of one request: its prompts times n."""


class CompletionChoice(msgspec.Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


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
    _check_echo(body, prompts, parameters.n)
    alternatives = prompt_alternatives(body)
    group = new_id("prompts-") if len(prompts) > 1 else ""
    return [
        GenerationCall(
            prompt=prompt,
            add_special_tokens=body.add_special_tokens is not False,
            num_kept=num_kept(body),
            parameters=parameters,
            prompt_logprobs=_most(alternatives, _echoed_alternatives(body, prompt)),
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
    return prompts


def _check_echo(body: CompletionBody, prompts: list[str | list[int]], n: int) -> None:
    """Raises OpenAiError."""
    is_scored = any(_echoed_alternatives(body, prompt) is not None for prompt in prompts)
    if is_scored and body.stream and n > 1:
        raise bad_request(
            "'echo' with 'logprobs' or with tokens cannot be streamed for several choices", "echo"
        )


def _echoed_alternatives(body: CompletionBody, prompt: str | list[int]) -> int | None:
    """An echo with log-probabilities needs those of the prompt; one of tokens needs their texts."""
    if not body.echo:
        return None
    return 0 if body.logprobs is None and not isinstance(prompt, str) else body.logprobs


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


class Echo(msgspec.Struct, frozen=True):
    """What comes of the prompt of one call in its choices."""

    text: str | None = ""
    """None means the texts of its tokens."""
    has_logprobs: bool = False
    has_prompt_logprobs: bool = False
    """vLLM's field."""
    is_all: bool = False
    """The completion itself is not wanted."""

    def prefix(self, entries: list[TokenLogprob]) -> str:
        if self.text is not None:
            return self.text
        return b"".join([entry.raw for entry in entries]).decode(errors="replace")

    def event(self, event: GenerationEvent) -> GenerationEvent:
        """The event without what is not wanted of it."""
        if not self.is_all:
            return event
        pieces = [
            CompletionPiece(
                piece.index,
                "",
                [],
                finish_reason=piece.finish_reason and "length",
                prompt_logprobs=piece.prompt_logprobs,
            )
            for piece in event.pieces
        ]
        return GenerationEvent(pieces, event.num_prompt_tokens, event.num_cached_tokens, 0)


def echoes(body: CompletionBody, calls: list[GenerationCall]) -> list[Echo]:
    return [
        Echo(
            (call.prompt if isinstance(call.prompt, str) else None) if body.echo else "",
            has_logprobs=bool(body.echo) and body.logprobs is not None,
            has_prompt_logprobs=body.prompt_logprobs is not None,
            is_all=wants_prompt_only(body),
        )
        for call in calls
    ]


class StreamedCompletion:
    """A GenerationWriter."""

    def __init__(
        self,
        model: str,
        created_s: int,
        n: int,
        echoes: list[Echo],
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
        event = self._echoes[call_index].event(event)
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
        echo, text, entries = self._echoes[call_index], piece.text, piece.logprobs or []
        is_first = index not in self._offsets
        offset = self._offsets.setdefault(index, 0)
        if is_first:
            prompt = piece.prompt_logprobs or []
            text = echo.prefix(prompt) + text
            entries = prompt + entries if echo.has_logprobs else entries
        logprobs = None
        if entries:
            has_first = is_first and echo.has_logprobs
            logprobs = completion_logprobs(entries, offset, has_first=has_first)
            self._offsets[index] = offset + sum(len(entry.text) for entry in entries)
        elif not text and piece.finish_reason is None:
            return b""
        return self._frame.chunk(CompletionChoice(text, index, logprobs, piece.finish_reason))


class WholeCompletion:
    """A GenerationWriter."""

    def __init__(self, model: str, created_s: int, n: int, echoes: list[Echo]) -> None:
        self._model = model
        self._created_s = created_s
        self._n = n
        self._echoes = echoes
        self._usage = UsageCount()
        self._choices: dict[int, CompletionChoice] = {}
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._prompts: dict[int, list[TokenLogprob]] = {}

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        event = self._echoes[call_index].event(event)
        self._usage.add(call_index, event)
        for piece in event.pieces:
            index = call_index * self._n + piece.index
            choice = self._choices.setdefault(index, CompletionChoice("", index))
            choice.text += piece.text
            choice.finish_reason = piece.finish_reason or choice.finish_reason
            if piece.logprobs:
                self._logprobs.setdefault(index, []).extend(piece.logprobs)
            if piece.prompt_logprobs is not None:
                self._prompts[call_index] = piece.prompt_logprobs
        return b""

    def end(self) -> bytes:
        for index, choice in self._choices.items():
            echo, prompt = self._echoes[index // self._n], self._prompts.get(index // self._n, [])
            entries = (prompt if echo.has_logprobs else []) + self._logprobs.get(index, [])
            choice.text = echo.prefix(prompt) + choice.text
            if entries:
                choice.logprobs = completion_logprobs(entries, 0, has_first=echo.has_logprobs)
            if echo.has_prompt_logprobs:
                choice.prompt_logprobs = prompt_logprobs(prompt)
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
