"""The sampling parameters of an OpenAI request: those of the body, then the model's defaults, then
the engine's.

Rule: values beyond the ranges that OpenAI documents are refused here, with OpenAI's messages. The
      engine's ranges are wider, for clients of other protocols. naiad.llm.parameters has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.errors import NaiadError
from naiad.llm.parameters import (
    MAX_LOGPROBS,
    OPENAI_MAX_BIAS,
    OPENAI_MAX_COMPLETION_LOGPROBS,
    OPENAI_RANGES,
    SamplingParameters,
    shown,
)
from naiad.protocol.openai.body import ChatBody, CompletionBody, GenerationBody, ResponsesBody
from naiad.protocol.openai.error import bad_request, from_core

_NAMES = frozenset(field.name for field in msgspec.structs.fields(SamplingParameters))
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for plain completions; a chat has no such limit."""
_SAME = (
    "max_tokens", "min_tokens", "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop_token_ids", "bad_words", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip


def chat_sampling(body: ChatBody, defaults: Mapping[str, Any]) -> SamplingParameters:
    """Raises OpenAiError."""
    _check_ranges(body)
    values = _common(body)
    if body.max_completion_tokens is not None:
        values["max_tokens"] = body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("'top_logprobs' is only allowed when 'logprobs' is true", "top_logprobs")
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return _merged(values, defaults)


def completion_sampling(body: CompletionBody, defaults: Mapping[str, Any]) -> SamplingParameters:
    """Raises OpenAiError."""
    _check_ranges(body)
    if body.logprobs is not None:
        _check_range("logprobs", body.logprobs, 0, OPENAI_MAX_COMPLETION_LOGPROBS)
    values = _common(body)
    if body.logprobs is not None:
        values["logprobs"] = body.logprobs
    if wants_prompt_only(body):
        values["max_tokens"] = 1  # it is made, and dropped
    return _merged(values, {"max_tokens": COMPLETION_MAX_TOKENS, **defaults})


def responses_sampling(body: ResponsesBody, defaults: Mapping[str, Any]) -> SamplingParameters:
    """Raises OpenAiError."""
    _check_ranges(body)
    values = _common(body)
    if body.max_output_tokens is not None:
        values["max_tokens"] = body.max_output_tokens
    return _merged(values, defaults)


def wants_prompt_only(body: CompletionBody) -> bool:
    """True if the text itself, or its log-probabilities, are all that is wanted."""
    return body.max_tokens == 0 and bool(body.echo or body.prompt_logprobs is not None)


def prompt_alternatives(body: GenerationBody) -> int | None:
    """How many alternatives to each token of the prompt are reported; None reports none. Raises
    OpenAiError."""
    count = body.prompt_logprobs
    if count is None:
        return None
    if not 0 <= count <= MAX_LOGPROBS:
        raise bad_request(
            f"'prompt_logprobs' is {shown(count)}, expected 0 to {MAX_LOGPROBS}", "prompt_logprobs"
        )
    if body.stream:
        raise bad_request("'prompt_logprobs' cannot be streamed", "prompt_logprobs")
    return count


def num_kept(body: GenerationBody) -> int:
    """The number of the prompt's last tokens that are kept; 0 keeps all. Raises OpenAiError."""
    count = body.truncate_prompt_tokens
    if count is not None and count < 1:
        raise bad_request(
            f"'truncate_prompt_tokens' is {count}, expected at least 1", "truncate_prompt_tokens"
        )
    return count or 0


def _check_ranges(body: GenerationBody | ResponsesBody) -> None:
    for name, (low, high) in OPENAI_RANGES.items():
        value = getattr(body, name, None)
        if value is not None:
            _check_range(name, value, low, high)


def _check_range(name: str, value: float, low: int, high: int) -> None:
    if low <= value <= high:
        return
    kind = "integer" if isinstance(value, int) else "decimal"
    side, place, bound = ("above", "maximum", f"<= {high}")
    if value < low:
        side, place, bound = ("below", "minimum", f">= {low}")
    raise bad_request(
        f"Invalid '{name}': {kind} {side} {place} value. Expected a value {bound}, but got "
        f"{shown(value)} instead.",
        name,
        f"{kind}_{side}_{place[:3]}_value",
    )


def _common(body: GenerationBody | ResponsesBody) -> dict[str, Any]:
    values = {name: value for name in _SAME if (value := getattr(body, name, None)) is not None}
    if body.stop is not None:
        values["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.logit_bias:
        values["logit_bias"] = _logit_bias(body.logit_bias)
    return values


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    for bias in given.values():
        _check_range("logit_bias", bias, -OPENAI_MAX_BIAS, OPENAI_MAX_BIAS)
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise bad_request(
            "Invalid value for 'logit_bias': its keys must be token ids", "logit_bias"
        ) from None


def _merged(values: dict[str, Any], defaults: Mapping[str, Any]) -> SamplingParameters:
    try:
        parameters = msgspec.convert(
            {**defaults, **values}, SamplingParameters, strict=False, str_keys=True
        )
    except (msgspec.ValidationError, OverflowError) as error:
        raise bad_request(f"The sampling parameters cannot be used: {error}") from None
    try:
        parameters.check_ranges()
    except NaiadError as error:
        raise from_core(error, _NAMES) from None
    return parameters
