"""The sampling and stop parameters of one request, and the range of each.

In:  the client's parameters under Naiad's names. Out: read by the sampler's slot table and by the
     stop checks.
Rule: a bad value is the request's INVALID_ARG, with the parameter's name, its value and the
      expected values. Every reader of a protocol calls `check_ranges` before it builds anything
      from the parameters; the engine calls `check`, which also knows the vocabulary. The table in
      docs/llm-backend.md shows these ranges; tests/unit/llm/test_parameters.py compares the two.
"""

from __future__ import annotations

import math

import msgspec

from naiad.errors import NaiadError, invalid_arg

MAX_INTEGER = (1 << 63) - 1
MIN_INTEGER = -(1 << 63)
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKENS = 64
MAX_STOPS = 64
MAX_STOP_LENGTH = 256
MAX_STOP_CHARACTERS = 4096
"""Maximum length of all stop strings together. Every new token is compared with all of them."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 4096
"""Maximum length of all bad words together. Each is tokenized twice."""
MAX_COMPLETIONS = 128
MAX_SALT_CHARACTERS = 1024
FLOAT_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}
INTEGER_RANGES = {
    "max_tokens": (1, MAX_INTEGER),
    "min_tokens": (0, MAX_INTEGER),
    "top_k": (-1, MAX_INTEGER),
    "seed": (MIN_INTEGER, (1 << 64) - 1),
    "n": (1, MAX_COMPLETIONS),
    "logprobs": (0, MAX_LOGPROBS),
}
OPENAI_RANGES: dict[str, tuple[int, int]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "n": (1, MAX_COMPLETIONS),
    "top_logprobs": (0, MAX_LOGPROBS),
}
"""The narrower ranges that OpenAI documents, for requests to its endpoints."""
OPENAI_MAX_COMPLETION_LOGPROBS = 5
OPENAI_MAX_BIAS = 100


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

    def check_ranges(self) -> None:
        """Checks everything that does not depend on the model. Raises NaiadError."""
        for name, (low, high) in INTEGER_RANGES.items():
            number = getattr(self, name)
            if number is not None and not low <= number <= high:
                raise invalid_arg(f"{name} is {shown(number)}, expected {_expected(low, high)}")
        for name, (lowest, highest) in FLOAT_RANGES.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:  # NaN fails both comparisons
                raise invalid_arg(f"{name} is {value:g}, expected {lowest:g} to {highest:g}")
        if self.top_p == 0.0:
            raise invalid_arg("top_p is 0, expected more than 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid_arg(
                f"min_tokens is {self.min_tokens}, expected 0 to max_tokens ({self.max_tokens})"
            )
        self._check_lists()

    def check(self, vocab_size: int) -> None:
        """Checks everything. Raises NaiadError."""
        self.check_ranges()
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise invalid_arg(
                        f"{name} names token {shown(token)}, expected 0 to {vocab_size - 1}"
                    )

    def check_room(self, max_waiting: int) -> None:
        """Rejects more completions than may ever wait; they would be turned away on every retry."""
        if self.n > max_waiting:
            raise invalid_arg(
                f"n is {self.n}, expected at most {max_waiting}, the number that may wait"
            )

    def _check_lists(self) -> None:
        for name, entries, limit in (
            ("logit_bias", self.logit_bias, MAX_LOGIT_BIAS),
            ("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS),
            ("stop", self.stop, MAX_STOPS),
            ("bad_words", self.bad_words, MAX_BAD_WORDS),
        ):
            if len(entries) > limit:
                raise invalid_arg(f"{name} has {len(entries)} entries, expected at most {limit}")
        for name, words, limit in (
            ("stop", self.stop, MAX_STOP_CHARACTERS),
            ("bad_words", self.bad_words, MAX_BAD_WORD_CHARACTERS),
        ):
            if any(not word for word in words):
                raise invalid_arg(f"{name} holds an empty string")
            total = sum(map(len, words))
            if total > limit:
                raise invalid_arg(f"{name} has {total} characters, expected at most {limit}")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_LENGTH:
            raise invalid_arg(
                f"stop has a string of {longest} characters, expected at most {MAX_STOP_LENGTH}"
            )
        for token, bias in self.logit_bias.items():
            if math.isnan(bias):
                raise invalid_arg(f"logit_bias of token {shown(token)} is not a number")


def _expected(low: int, high: int) -> str:
    if high < MAX_INTEGER:
        return f"{low} to {high}"
    return f"at least {low}, in 64 bits" if high == MAX_INTEGER else "an integer of 64 bits"


def shown(number: float) -> str:
    """Returns the number as text. A long one is described, because Python refuses to write it."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"a number of {number.bit_length()} bits"
    return str(number)


def check_integer(name: str, number: int) -> None:
    """Raises NaiadError if the number does not fit 64 bits."""
    if not MIN_INTEGER <= number <= MAX_INTEGER:
        raise invalid_arg(f"{name} is {shown(number)}, expected an integer of 64 bits")


def too_long(num_prompt_tokens: int, max_model_len: int) -> NaiadError:
    return invalid_arg(
        f"the prompt has {num_prompt_tokens} tokens, the model's context is {max_model_len} "
        f"for prompt and output together"
    )
