"""One completion on the OpenVINO engine: its prompt, OpenVINO's configuration of it, its text.

In:  a GenerationRequest. Out: OpenvinoSequence, one per completion; what OpenVINO's continuous
     batching lacks is refused here, by name.
"""

from __future__ import annotations

import random
from typing import Any

import openvino_genai

from naiad.errors import invalid_arg
from naiad.llm.generation import EbnfGrammar, GenerationRequest
from naiad.llm.parameters import SamplingParameters, shown, too_long
from naiad.llm.text.completion_text import CompletionText
from naiad.llm.text.detokenizer import build_detokenizer
from naiad.llm.text.stop_strings import StopStrings, StopTable
from naiad.llm.text.tokenizer import Tokenizer

MAX_SEED = (1 << 63) - 1


class OpenvinoSequence:
    __slots__ = (
        "arrival_ns", "begin_ns", "config", "end_token_ids", "first_token_ns", "handle", "index",
        "is_finished", "last_token_ns", "max_tokens", "prompt", "request",
        "text", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        prompt: list[int],
        config: Any,
        end_token_ids: frozenset[int],
        text: CompletionText | None,
    ) -> None:
        self.request = request
        self.index = index
        self.prompt = prompt
        self.config = config
        self.max_tokens: int = config.max_new_tokens
        self.end_token_ids = end_token_ids
        self.text = text
        self.handle: Any = None
        self.tokens: list[int] = []
        self.arrival_ns = 0
        self.begin_ns = 0
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.is_finished = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def grammar(self) -> str | None:
        return self.request.grammar.text if isinstance(self.request.grammar, EbnfGrammar) else None

    @property
    def can_pause(self) -> bool:
        """True if it can be taken up again without a change in what the client gets: its random
        numbers, its grammar and the penalties on its own tokens would begin anew."""
        parameters = self.request.parameters
        return (
            self.grammar is None
            and (parameters.seed is None or parameters.temperature == 0)
            and not parameters.presence_penalty
            and not parameters.frequency_penalty
        )

    def go_on(self) -> list[int]:
        """The prompt with which it can be taken up again by a pipeline that knows nothing of it:
        everything up to now."""
        self.config.max_new_tokens = self.max_tokens - len(self.tokens)
        self.config.min_new_tokens = max(
            0, min(self.request.parameters.min_tokens, self.max_tokens) - len(self.tokens)
        )
        return [*self.prompt, *self.tokens]


def build_sequences(
    request: GenerationRequest, tokenizer: Tokenizer, max_model_len: int, source: random.Random
) -> list[OpenvinoSequence]:
    """Raises NaiadError."""
    parameters = request.parameters
    parameters.check(tokenizer.vocab_size)
    _refuse_lacking(request)
    prompt = tokenizer.encode(request.prompt) if isinstance(request.prompt, str) else request.prompt
    _check_prompt(prompt, tokenizer.vocab_size, max_model_len)
    room = max_model_len - len(prompt)
    max_tokens = room if parameters.max_tokens is None else min(room, parameters.max_tokens)
    # a grammar that is at its end allows nothing else
    is_free = parameters.ignore_eos and request.grammar is None
    ends = frozenset(parameters.stop_token_ids) | frozenset(
        () if is_free else tokenizer.eos_token_ids
    )
    _check_grammar(request, ends)
    seed = source.getrandbits(62) if parameters.seed is None else parameters.seed
    sequences = []
    stops = StopTable(parameters.stop)
    for index in range(parameters.n):
        config = _config(parameters, max_tokens, ends, (seed + index) & MAX_SEED)
        if isinstance(request.grammar, EbnfGrammar):
            config.structured_output_config = openvino_genai.StructuredOutputConfig(
                grammar=request.grammar.text
            )
        sequences.append(
            OpenvinoSequence(
                request, index, prompt, config, ends, _text(request, tokenizer, prompt, stops)
            )
        )
    return sequences


def _refuse_lacking(request: GenerationRequest) -> None:
    parameters = request.parameters
    lacking = {
        "logit_bias": bool(parameters.logit_bias),
        "bad_words": bool(parameters.bad_words),
        "priority": request.priority != 0,
        "cache_salt": bool(request.cache_salt),
        "prompt_logprobs": request.prompt_logprobs is not None,
        "logprobs": (parameters.logprobs or 0) > 1,
    }
    for name, is_asked in lacking.items():
        if is_asked:
            limit = " beyond 1" if name == "logprobs" else ""
            raise invalid_arg(f"the openvino engine has no {name}{limit}; the native engine does")


def _check_grammar(request: GenerationRequest, ends: frozenset[int]) -> None:
    if request.grammar is None:
        return
    if not isinstance(request.grammar, EbnfGrammar):
        raise invalid_arg("the openvino engine takes no compiled grammar, expected its text")
    if request.parameters.min_tokens:
        raise invalid_arg(
            "min_tokens cannot be used with a grammar, which ends the response itself"
        )
    if not ends:
        raise invalid_arg(
            "the model has no end-of-sequence token, without which a grammar cannot end an "
            "answer on the openvino engine"
        )


def _check_prompt(prompt: list[int], vocab_size: int, max_model_len: int) -> None:
    if not prompt:
        raise invalid_arg("the prompt is empty, expected at least one token")
    if len(prompt) >= max_model_len:
        raise too_long(len(prompt), max_model_len)
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise invalid_arg(f"the prompt holds token {shown(wrong)}, expected 0 to {vocab_size - 1}")


def _config(
    parameters: SamplingParameters, max_tokens: int, ends: frozenset[int], seed: int
) -> Any:
    config = openvino_genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = max_tokens
    config.min_new_tokens = min(parameters.min_tokens, max_tokens)
    # OpenVINO's ignore_eos also ignores stop tokens, and an eos that is not set becomes the
    # checkpoint's: so one of ours stands for it.
    config.ignore_eos = not ends
    config.set_eos_token_id(min(ends, default=0))
    if ends:
        config.stop_token_ids = set(ends)
    config.do_sample = parameters.temperature > 0
    if config.do_sample:
        config.temperature = parameters.temperature
        config.top_p = parameters.top_p
        config.min_p = parameters.min_p
        config.rng_seed = seed
        if parameters.top_k > 0:
            config.top_k = parameters.top_k
    config.repetition_penalty = parameters.repetition_penalty
    config.presence_penalty = parameters.presence_penalty
    config.frequency_penalty = parameters.frequency_penalty
    config.logprobs = 0 if parameters.logprobs is None else 1
    return config


def _text(
    request: GenerationRequest, tokenizer: Tokenizer, prompt: list[int], stops: StopTable
) -> CompletionText | None:
    parameters = request.parameters
    if not request.should_detokenize:
        if parameters.stop:
            raise invalid_arg("stop strings need should_detokenize")
        return None
    detokenizer = build_detokenizer(tokenizer, prompt, parameters.skip_special_tokens)
    return CompletionText(detokenizer, StopStrings(stops, parameters.include_stop_str_in_output))
