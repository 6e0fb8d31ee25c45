"""The sampling and stop parameters of one request, checked once before the engine accepts it.

In:  the client's parameters under Naiad's names. Out: read by the sampler's slot table and by the
     stop checks.
Rule: a bad value is the request's INVALID_ARG, with the parameter's name, its value and the
      expected values.
"""

from __future__ import annotations

import math

import msgspec

from naiad.errors import invalid_arg

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKENS = 64
MAX_COMPLETIONS = 128


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: int | None = None
    """None means as many as the context holds. A larger value is reduced to that."""
    min_tokens: int = 0
    """Before this many tokens, end-of-sequence and stop tokens cannot be sampled and stop strings
    are ignored."""
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 or -1 means off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Applies to prompt and output, as in transformers. The other two penalties apply to the output
    alone, as in OpenAI's API."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """Fixes the random stream, which depends only on seed, completion index and position."""
    n: int = 1
    logprobs: int | None = None
    """Number of alternatives reported with each chosen token's log-probability; 0 reports the
    chosen token alone."""
    stop: list[str] = []
    stop_token_ids: list[int] = []
    bad_words: list[str] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def check(self, vocab_size: int) -> None:
        self._check_lengths()
        self._check_distribution()
        self._check_tokens(vocab_size)

    def check_room(self, max_waiting: int) -> None:
        """Rejects more completions than may ever wait; they would be turned away on every retry."""
        if self.n > max_waiting:
            raise invalid_arg(
                f"n is {self.n}, expected at most {max_waiting}, the number that may wait"
            )

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise invalid_arg(f"max_tokens is {self.max_tokens}, expected at least 1")
        if self.min_tokens < 0 or (
            self.max_tokens is not None and self.min_tokens > self.max_tokens
        ):
            raise invalid_arg(
                f"min_tokens is {self.min_tokens}, expected 0 to max_tokens ({self.max_tokens})"
            )
        if not 1 <= self.n <= MAX_COMPLETIONS:
            raise invalid_arg(f"n is {self.n}, expected 1 to {MAX_COMPLETIONS}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise invalid_arg(f"logprobs is {self.logprobs}, expected 0 to {MAX_LOGPROBS}")

    def _check_distribution(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise invalid_arg("top_p is 0, expected more than 0")
        _check_range("min_p", self.min_p, 0.0, 1.0)
        if self.top_k < -1:
            raise invalid_arg(f"top_k is {self.top_k}, expected -1 or 0 (off) or a positive number")
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_range("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check_range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)

    def _check_tokens(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise invalid_arg(
                f"logit_bias has {len(self.logit_bias)} entries, expected at most {MAX_LOGIT_BIAS}"
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise invalid_arg(
                f"stop_token_ids has {len(self.stop_token_ids)} entries, "
                f"expected at most {MAX_STOP_TOKENS}"
            )
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise invalid_arg(f"{name} names token {token}, expected 0 to {vocab_size - 1}")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias):
                raise invalid_arg(f"logit_bias of token {token} is not a number")
        for name, words in (("stop", self.stop), ("bad_words", self.bad_words)):
            if any(not word for word in words):
                raise invalid_arg(f"{name} holds an empty string")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN fails both comparisons
        raise invalid_arg(f"{name} is {value:g}, expected {low:g} to {high:g}")
