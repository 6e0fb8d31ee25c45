"""The tokens of requests whose API key has limits of tokens.

In:  bodies of requests, and responses as they pass through. Out: what is reserved from the limits
     before a request is sent, and what it has used in the end.
Rule: bodies of keys without such limits are never read. A response of OpenAI's routes is counted by
      its `usage`; a stream without one by its events, of which each is at least one token. Requests
      of Triton's protocol keep what they reserve, as in the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from naiad.frontends.token_estimate import DEFAULT_OUTPUT_TOKENS, estimate_text_tokens
from naiad.keys.account import Admission
from naiad.router.replica import Replica

_GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_TAIL_BYTES = 4096
_EVENT = b"data: {"
# Text that a model writes has a backslash before each quote.
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d{1,18})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens":\s*(\d{1,18})')


class _Limits(msgspec.Struct):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


_decoder = msgspec.json.Decoder(_Limits)


def estimate_openai_tokens(path: str, body: bytes) -> int:
    """The prompt by its length, and as many output tokens as the request allows."""
    num_prompt = estimate_text_tokens(len(body))
    if path.partition("?")[0] not in _GENERATING:
        return num_prompt
    try:
        limits = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return num_prompt  # the replica refuses it
    given = (limits.max_completion_tokens, limits.max_tokens, limits.max_output_tokens)
    limit = next((each for each in given if each is not None), DEFAULT_OUTPUT_TOKENS)
    return num_prompt + max(1, limits.n or 1) * max(0, limit)


def estimate_tensor_tokens(num_bytes: int) -> int:
    """For a request of Triton's protocol."""
    return estimate_text_tokens(num_bytes) + DEFAULT_OUTPUT_TOKENS


def is_language(model: str, replicas: Iterable[Replica]) -> bool:
    return any(model in replica.openai_models for replica in replicas)


class UsageReader:
    """Reads what one response says about its tokens, and settles it."""

    __slots__ = ("_admission", "_num_events", "_num_prompt", "_tail")

    def __init__(self, admission: Admission, num_prompt: int) -> None:
        """`num_prompt` is what counts for the prompt if the response does not tell."""
        self._admission = admission
        self._num_prompt = num_prompt
        self._num_events = 0
        self._tail = b""

    def on_data(self, data: bytes) -> None:
        """A part of the response."""
        self._num_events += (self._tail[1 - len(_EVENT) :] + data).count(_EVENT)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._settle(self._tail, self._num_events)

    def on_whole(self, body: bytes) -> None:
        self._settle(body, 0)

    def _settle(self, text: bytes, num_events: int) -> None:
        prompts, outputs = _PROMPT.findall(text), _OUTPUT.findall(text)
        if prompts:
            self._admission.settle(int(prompts[-1]), int(outputs[-1]) if outputs else 0)
        elif num_events:
            self._admission.settle(self._num_prompt, num_events)
