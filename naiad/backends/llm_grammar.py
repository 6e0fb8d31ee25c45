"""Structured output: a grammar, compiled for the model's vocabulary, becomes a token mask per step (xgrammar).

In:  a GrammarCall. Out: naiad.llm.generation.Grammar, one per request. What the grammar itself has wrong is the request's INVALID_ARG.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.backends.llm_call import GrammarCall
from naiad.backends.llm_model import OpenModel
from naiad.backends.llm_schema import plain_schema
from naiad.errors import NaiadError, invalid_arg
from naiad.llm.generation import Grammar
from naiad.llm.tokenizer import Tokenizer

KINDS = ("json_object", "json_schema", "regex", "ebnf", "structural_tag")
MAX_CACHE_BYTES = 256 << 20


class GrammarCompiler:
    """One per model: compiled grammars are kept by their text. May be used from any thread."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._compiler: Any = None
        self._json_compiler: Any = None
        self._has_end = True

    def build(self, call: GrammarCall) -> Grammar:
        """Raises NaiadError."""
        if call.kind not in KINDS:
            raise invalid_arg(f"grammar kind is '{call.kind}', expected one of {', '.join(KINDS)}")
        if self._compiler is None:
            self._start()
        import xgrammar

        try:
            compiled = self._compile(call)
        except (RuntimeError, ValueError, TypeError) as error:
            raise _refusal(call, error) from None
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=not self._has_end)
        return XgrammarGrammar(matcher)

    def _start(self) -> None:
        model = self._model
        if model.engine_name != "native":
            raise invalid_arg(f"the {model.engine_name} engine cannot constrain its answers by a grammar")
        if find_spec("xgrammar") is None:
            raise invalid_arg("structured output needs xgrammar: pip install 'naiad[grammar]'")
        if not isinstance(model.tokenizer, Tokenizer):
            raise invalid_arg("structured output needs the model's tokenizer")
        tokenizer = model.tokenizer
        # Special tokens must stay out of strings: their text would be skipped on the way to the client.
        words = [
            "" if token in tokenizer.special_token_ids else tokenizer.backend.id_to_token(token) or ""
            for token in range(tokenizer.vocab_size)
        ]
        self._has_end = bool(tokenizer.eos_token_ids)
        # JSON on one line has no place for control characters, but xgrammar lets some of them into strings with a length.
        printable = ["" if _has_control(model.token_bytes(token)) else word for token, word in enumerate(words)]
        self._json_compiler = self._build_compiler(tokenizer, printable)
        self._compiler = self._build_compiler(tokenizer, words)

    def _build_compiler(self, tokenizer: Tokenizer, words: list[str]) -> Any:
        import xgrammar

        kind = xgrammar.VocabType.BYTE_LEVEL if tokenizer.is_byte_level else xgrammar.VocabType.BYTE_FALLBACK
        ends = list(tokenizer.eos_token_ids)
        information = xgrammar.TokenizerInfo(words, kind, vocab_size=self._model.vocab_size, stop_token_ids=ends or None)
        return xgrammar.GrammarCompiler(information, max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES)

    def _compile(self, call: GrammarCall) -> Any:
        match call.kind:
            case "json_object":
                # OpenAI promises an object, where JSON in general may be a bare number.
                return self._json_compiler.compile_json_schema('{"type": "object"}', any_whitespace=False)
            case "json_schema":
                schema = json.dumps(plain_schema(json.loads(call.value)))
                return self._json_compiler.compile_json_schema(schema, any_whitespace=False)
            case "regex":
                return self._compiler.compile_regex(call.value)
            case "ebnf":
                return self._compiler.compile_grammar(call.value)
            case _:
                json.loads(call.value)  # a ValueError becomes the request's error
                return self._compiler.compile_structural_tag(call.value)


def _has_control(raw: bytes) -> bool:
    return any(byte < 0x20 for byte in raw)


def _refusal(call: GrammarCall, error: Exception) -> NaiadError:
    words = str(error).strip().splitlines() or [type(error).__name__]
    return invalid_arg(f"the {call.kind} of the request cannot be used: {words[-1][:300]}")


class XgrammarGrammar:
    """`Grammar` of naiad.llm.generation."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        self._matcher.fill_next_token_bitmask(bitmask.reshape(1, -1), 0)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def is_finished(self) -> bool:
        return bool(self._matcher.is_terminated())

    def fork(self) -> Grammar:
        return XgrammarGrammar(self._matcher.fork())
