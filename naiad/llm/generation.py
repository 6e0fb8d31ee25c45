"""The input and output of the engine: a request, and per step the tokens that each of its
completions gained.

In:  GenerationRequest, passed to Engine.submit. Out: TokenOutput, returned by Engine.step.
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
    """The interface that a structured-output library must implement. There is one object per
    completion, and only the engine calls it."""

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Writes which tokens may come next: bit t%32 of word t//32 is 1 if token t is allowed."""

    def accept(self, token: int) -> bool:
        """Returns False if the token does not fit. The request then fails, because the mask should
        have excluded the token."""

    def is_finished(self) -> bool:
        """True if only the end may follow. The completion then stops."""

    def fork(self) -> Grammar:
        """Returns a copy in the same state, for the other completions of a request with n > 1."""


class EbnfGrammar(msgspec.Struct, frozen=True):
    """A grammar for engines that contain a matcher. naiad.llm.grammar writes it and uses only what
    such a matcher can read."""

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
    """Requests of one key with a smaller value are served first; equal ones in order of
    arrival."""
    grammar: Grammar | EbnfGrammar | None = None
    """The native engine needs a Grammar, the OpenVINO engine an EbnfGrammar."""
    cache_salt: str = ""
    """Prefixes are shared only between requests with the same salt."""
    group: str = ""
    """Requests with the same group get one share of the engine; empty for a request of its own."""
    cache_owner: str = ""
    """Prefixes are shared only between requests with the same owner; empty means everybody."""
    key_id: str = ""
    """The API key that the request came with. Keys are served in turn."""
    key_weight: int = 1
    """A key with twice the weight gets twice the tokens while both wait."""
    add_special_tokens: bool = True
    """False for a prompt that already has them, such as a rendered chat template."""
    prompt_logprobs: int | None = None
    """Number of alternatives reported with each token of the prompt, 0 to 20; None reports no
    log-probabilities of the prompt. The prompt is then computed whole, without the prefix cache."""
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
    """Index of the completion among the request's n completions."""
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One for each token of the prompt, with the first output of completion 0. The first token
    follows nothing: its entry is 0.0."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended the completion; None for end of sequence."""
    error: NaiadError | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache when the completion was first admitted."""
