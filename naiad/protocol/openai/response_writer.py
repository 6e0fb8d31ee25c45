"""What all of OpenAI's responses share: ids, usage, server-sent events, and the interface of the
writer that an endpoint gives to its generation."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

import msgspec

from naiad.ipc.generation_call import GenerationEvent
from naiad.protocol.openai.error import OpenAiError, encode_error

DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


class GenerationWriter(Protocol):
    """Writes the response to one request. `write` is called for every event of every call that the
    request was made into, `end` once after all of them."""

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        """The bytes of a stream that can be sent now; empty when there are none yet, and always for
        a response that is not streamed."""
        ...

    def end(self) -> bytes:
        """The rest of the stream, or the whole response."""
        ...

    def fail(self, error: OpenAiError) -> bytes:
        """The end of a stream that has begun and cannot go on."""
        ...


class CachedTokens(msgspec.Struct):
    cached_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: CachedTokens = msgspec.field(default_factory=CachedTokens)


class UsageCount:
    """Adds up the usage of all calls of a request; each event has the totals of its call."""

    def __init__(self) -> None:
        self._events: dict[int, GenerationEvent] = {}

    def add(self, call_index: int, event: GenerationEvent) -> None:
        self._events[call_index] = event

    def total(self) -> Usage:
        events = self._events.values()
        prompt = sum(event.num_prompt_tokens for event in events)
        output = sum(event.num_output_tokens for event in events)
        return Usage(
            prompt,
            output,
            prompt + output,
            CachedTokens(sum(event.num_cached_tokens for event in events)),
        )


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value)


def encode_failure(error: OpenAiError) -> bytes:
    """The error as an event of a stream, which OpenAI's clients raise."""
    return b"data: %b\n\n" % encode_error(error)


class ChunkFrame:
    """Encodes the chunks of one stream. They differ in their choice only, so the rest is encoded
    once."""

    def __init__(
        self, id: str, object: str, created_s: int, model: str, *, has_usage: bool
    ) -> None:
        head = encode({"id": id, "object": object, "created": created_s, "model": model})[:-1]
        self._head = b'data: %b,"choices":[' % head
        # With include_usage every chunk has the field, and the last one has the value.
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def chunk(self, choice: msgspec.Struct) -> bytes:
        return b"".join((self._head, _ENCODER.encode(choice), self._tail))

    def show(self, usage: Usage) -> None:
        """The next chunks have this usage."""
        self._tail = b'],"usage":%b}\n\n' % _ENCODER.encode(usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, _ENCODER.encode(usage))
