"""Chooses the prompts of a language-model run: synthetic, from a file, or from a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from naiad.perf.data.openai_payload import extra_fields
from naiad.perf.data.prompts import (
    DEFAULT_INPUT_TOKENS,
    Lengths,
    Prompt,
    read_prompts,
    read_trace,
    synthetic,
)
from naiad.perf.data.token_counter import token_counter
from naiad.perf.measure.token_metrics import TokenCounting
from naiad.perf.options import PerfOptions


class PromptChoice(msgspec.Struct):
    prompts: list[Prompt]
    counting: TokenCounting
    extra: dict[str, Any]
    offsets_s: list[float] = []


def choose_prompts(options: PerfOptions) -> PromptChoice:
    """Returns the prompts and how their tokens are counted. Raises OptionError."""
    counter = token_counter(options.tokenizer)
    lengths = Lengths(
        options.synthetic_input_tokens_mean or DEFAULT_INPUT_TOKENS,
        options.synthetic_input_tokens_stddev,
        options.output_tokens_mean,
        options.output_tokens_stddev,
        options.shared_prefix_tokens,
    )
    if options.replay:
        prompts = read_trace(Path(options.replay), counter)
    elif options.input_file:
        prompts = read_prompts(Path(options.input_file), lengths, counter)
    else:
        prompts = synthetic(options.num_prompts, lengths, counter)
    counting = TokenCounting(
        [prompt.num_tokens for prompt in prompts], counter.count if counter.is_exact else None
    )
    offsets_s = [prompt.sent_s for prompt in prompts] if options.replay else []
    return PromptChoice(prompts, counting, extra_fields(options.extra_inputs), offsets_s)
