"""What goes into the engine and what comes out: a request, and per step what each of its
completions gained.

In:  GenerationRequest, given to Engine.submit. Out: TokenOutput, taken from Engine.step.
Invariant: each completion of an accepted request gets exactly one TokenOutput with a finish_reason,
           and nothing after it.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from naiad.errors import NaiadError
from naiad.llm.parameters import SamplingParameters


class Grammar(Protocol):
    """What a structured-output library must offer. One object per completion; the engine owns the
    calls, in order."""

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Writes which tokens may come next, bit t%32 of word t//32, 1 for allowed."""

    def accept(self, token: int) -> bool:
        """False when the token does not fit: the request fails, since the mask should have kept it
        out."""

    def is_finished(self) -> bool:
        """True when nothing but the end may follow: the completion stops."""

    def fork(self) -> Grammar:
        """A copy at the same state, for the further completions of n > 1."""


class EbnfGrammar(msgspec.Struct, frozen=True):
    """For engines with a matcher inside. Made by naiad.llm.grammar, which writes nothing that such
    a matcher cannot read."""

    text: str


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class GenerationRequest(msgspec.Struct, eq=False, kw_only=True):
    id: str
    prompt: str | list[int]
    parameters: SamplingParameters = SamplingParameters()
    priority: int = 0
    """Smaller goes first; equal ones go in order of arrival."""
    grammar: Grammar | EbnfGrammar | None = None
    """The native engine asks the one, the OpenVINO engine reads the other."""
    cache_salt: str = ""
    """Prefixes are shared only between requests with the same salt."""
    add_special_tokens: bool = True
    """False for a prompt that holds them already, as rendered chat templates do."""
    should_detokenize: bool = True
    """False leaves TokenOutput.text empty; stop strings then cannot be used."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms of the model's own distribution, before temperature, penalties and
    masks."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class TokenOutput(msgspec.Struct, eq=False):
    request_id: str
    index: int
    """Which of the request's n completions."""
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for end of sequence."""
    error: NaiadError | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache when the completion was first admitted."""
