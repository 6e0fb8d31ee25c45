"""Builds the sequences of a GenerationRequest, one per completion: tokenizes the prompt, checks it
against the model, and determines stops and seeds.

Rule: every error of a request is detected here, before the scheduler knows of the request.
"""

from __future__ import annotations

import math
import random

from naiad.errors import invalid_arg
from naiad.llm.generation import EbnfGrammar, GenerationRequest, Grammar
from naiad.llm.parameters import MAX_LOGIT_BIAS, shown, too_long
from naiad.llm.sequence import Sequence
from naiad.llm.text.completion_text import CompletionText
from naiad.llm.text.detokenizer import build_detokenizer
from naiad.llm.text.stop_strings import StopStrings, StopTable
from naiad.llm.text.tokenizer import Tokenizer


class SequenceBuilder:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        eos_token_ids: list[int],
        max_model_len: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.max_model_len = max_model_len

    def build(
        self, request: GenerationRequest, order: int, source: random.Random
    ) -> list[Sequence]:
        parameters = request.parameters
        parameters.check(self.vocab_size)
        grammar = _grammar(request)
        prompt = self._tokenize(request)
        max_length = self._max_length(len(prompt), parameters.max_tokens)
        stop_token_ids = frozenset(parameters.stop_token_ids) | frozenset(
            () if parameters.ignore_eos else self.eos_token_ids
        )
        words = self._split_bad_words(parameters.bad_words)
        logit_bias = parameters.logit_bias | {
            word[0]: -math.inf for word in words if len(word) == 1
        }
        if len(logit_bias) > MAX_LOGIT_BIAS:
            raise invalid_arg(
                f"logit_bias and bad_words have {len(logit_bias)} entries, "
                f"expected at most {MAX_LOGIT_BIAS}"
            )
        seed = source.getrandbits(63) if parameters.seed is None else parameters.seed
        stops = StopTable(parameters.stop)
        hashes: list[bytes] = []
        sequences = []
        for index in range(parameters.n):
            sequence = Sequence(
                request, index, prompt, max_length, (seed + index) & ((1 << 64) - 1), order + index
            )
            sequence.stop_token_ids = stop_token_ids
            sequence.bad_words = [word for word in words if len(word) > 1]
            sequence.logit_bias = logit_bias
            sequence.shared_hashes = hashes
            sequence.text = self._build_text(request, prompt, stops)
            if grammar is not None:
                sequence.grammar = grammar if index == 0 else grammar.fork()
            sequences.append(sequence)
        return sequences

    def _tokenize(self, request: GenerationRequest) -> list[int]:
        if isinstance(request.prompt, str):
            if self.tokenizer is None:
                raise invalid_arg("the model has no tokenizer, expected the prompt as token ids")
            prompt = self.tokenizer.encode(request.prompt, request.add_special_tokens)
        else:
            prompt = request.prompt
        if not prompt:
            raise invalid_arg("the prompt is empty, expected at least one token")
        if len(prompt) >= self.max_model_len:
            raise too_long(len(prompt), self.max_model_len)
        lowest = min(prompt)
        worst = lowest if lowest < 0 else max(prompt)
        if not 0 <= worst < self.vocab_size:
            raise invalid_arg(
                f"the prompt holds token {shown(worst)}, expected 0 to {self.vocab_size - 1}"
            )
        return prompt

    def _max_length(self, num_prompt: int, max_tokens: int | None) -> int:
        if max_tokens is None:
            return self.max_model_len
        return min(self.max_model_len, num_prompt + max_tokens)

    def _split_bad_words(self, words: list[str]) -> list[list[int]]:
        """Returns the tokens of each word at the beginning of a text and after a space, because
        tokenizers encode these differently."""
        if not words:
            return []
        if self.tokenizer is None:
            raise invalid_arg("the model has no tokenizer, bad_words cannot be used")
        spellings = [
            spelling for word in words for spelling in (word.lstrip(), " " + word.lstrip())
        ]
        encoded = self.tokenizer.encode_many(spellings)
        return [list(tokens) for tokens in dict.fromkeys(map(tuple, encoded)) if tokens]

    def _build_text(
        self, request: GenerationRequest, prompt: list[int], stops: StopTable
    ) -> CompletionText | None:
        parameters = request.parameters
        if self.tokenizer is None or not request.should_detokenize:
            if parameters.stop:
                raise invalid_arg("stop strings need the model's tokenizer and should_detokenize")
            return None
        detokenizer = build_detokenizer(self.tokenizer, prompt, parameters.skip_special_tokens)
        return CompletionText(
            detokenizer, StopStrings(stops, parameters.include_stop_str_in_output)
        )


def _grammar(request: GenerationRequest) -> Grammar | None:
    if isinstance(request.grammar, EbnfGrammar):
        raise invalid_arg(
            "the native engine does not accept the text of a grammar, expected a compiled one"
        )
    if request.grammar is not None and request.parameters.min_tokens:
        raise invalid_arg(
            "min_tokens cannot be used with a grammar, which ends the response itself"
        )
    return request.grammar
