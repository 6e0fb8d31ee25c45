"""The response of one open request: collects what its completions gain from engine steps until it
is sent.

In:  TokenOutput. Out: a Progress, which a ResponseFormat (one per request, made by its backend)
     turns into output tensors.
Rule: output that is not sent is kept and merged. This is how responses that are not streamed, slow
      readers and pieces without text are handled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from naiad.core.tensor import Tensor
from naiad.llm.generation import FinishReason, TokenLogprobs, TokenOutput


class Piece(msgspec.Struct, eq=False):
    """The output that one completion gained since the last response."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Progress(msgspec.Struct, eq=False):
    pieces: list[Piece]
    """Sorted by index; only completions that gained something."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: list[int]
    """Number of tokens of each of the n completions up to now."""
    is_final: bool


class ResponseFormat(Protocol):
    is_streamed: bool

    def encode(self, progress: Progress) -> list[Tensor] | None:
        """Returns None if the progress is not worth a response yet; never for the final one."""
        ...


TextEncoder: TypeAlias = Callable[[str], list[Tensor]]
"""Encodes a step that adds nothing but text to the only completion of a stream. Most steps are like
this, so they have a fast path."""


class PendingResponse:
    __slots__ = (
        "_encode_text",
        "_finished",
        "_num_cached_tokens",
        "_num_open",
        "_num_output_tokens",
        "_num_prompt_tokens",
        "_pieces",
        "format",
        "handle",
        "is_ending",
    )

    def __init__(
        self, handle: int, format: ResponseFormat, n: int, encode_text: TextEncoder | None = None
    ) -> None:
        self.handle = handle
        self.format = format
        self.is_ending = False
        """Somebody has asked for the end: when the engine has dropped the request, `end` is
        called."""
        self._encode_text = encode_text
        self._pieces: dict[int, Piece] = {}
        self._finished: set[int] = set()
        self._num_open = n
        self._num_output_tokens = [0] * n
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self._num_open == 0

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return sum(self._num_output_tokens)

    @property
    def num_longest(self) -> int:
        """The number of tokens of the longest completion."""
        return max(self._num_output_tokens)

    def add(self, output: TokenOutput) -> None:
        piece = self._pieces.get(output.index)
        if piece is None:
            piece = self._pieces[output.index] = Piece(output.index)
        piece.text += output.text
        piece.token_ids += output.token_ids
        if output.logprobs is not None:
            piece.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            piece.prompt_logprobs = output.prompt_logprobs
        self._num_output_tokens[output.index] += len(output.token_ids)
        self._num_prompt_tokens = max(self._num_prompt_tokens, output.num_prompt_tokens)
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if output.finish_reason is not None:
            piece.finish_reason = output.finish_reason
            piece.stop_reason = output.stop_reason
            self._num_open -= 1
            self._finished.add(output.index)

    def end(self) -> None:
        """Finishes every completion that is still open with what it has."""
        for index in range(len(self._num_output_tokens)):
            if index not in self._finished:
                piece = self._pieces.setdefault(index, Piece(index))
                piece.finish_reason = FinishReason.CANCELLED
        self._num_open = 0

    def encode_directly(self, output: TokenOutput) -> list[Tensor] | None:
        """Fast path: does `add` and `flush` in one. Returns None, without any effect, if the output
        needs the full path."""
        if (
            self._encode_text is None
            or self._pieces
            or not output.text
            or output.finish_reason is not None
        ):
            return None
        self._num_output_tokens[0] += len(output.token_ids)
        self._num_prompt_tokens = output.num_prompt_tokens
        self._num_cached_tokens = output.num_cached_tokens
        return self._encode_text(output.text)

    def flush(self) -> list[Tensor] | None:
        """Returns the outputs of a response with everything that was kept, or None if no response
        is due yet."""
        pieces = [self._pieces[index] for index in sorted(self._pieces)]
        progress = Progress(
            pieces,
            self._num_prompt_tokens,
            self._num_cached_tokens,
            self._num_output_tokens,
            self.is_finished,
        )
        outputs = self.format.encode(progress)
        if outputs is not None:
            self._pieces = {}
        return outputs
