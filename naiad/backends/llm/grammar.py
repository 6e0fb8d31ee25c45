"""Structured output: builds the grammar that a request demands of its response. The engine turns
the grammar into a token mask per step.

In:  a GrammarCall. Out: naiad.llm.generation.Grammar for the native engine, compiled by xgrammar
     for the model's vocabulary; EbnfGrammar for the OpenVINO engine, which contains that library.
Rule: both are built from the text that naiad.llm.grammar writes, so both engines reject a grammar
      with the same INVALID_ARG.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.schema import plain_schema
from naiad.core.install_advice import install_command
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.generation import EbnfGrammar, Grammar
from naiad.llm.grammar.expression import read_expression
from naiad.llm.grammar.lower import lower
from naiad.llm.grammar.reader import read_grammar
from naiad.llm.grammar.rules import MAX_WIDE, ROOT, Rules, check, render
from naiad.llm.grammar.schema import MAX_TEXT, schema_rules

KINDS = ("json_object", "json_schema", "regex", "ebnf", "structural_tag")
MAX_CACHE_BYTES = 256 << 20
OPENVINO_LIMITS = (256, 512)
"""Maximum length of a bounded text, and maximum number of places for any character. They are small
because OpenVINO compiles between two steps, while all other requests wait."""


class GrammarCompiler:
    """Compiles grammars for one model and caches them by their text. Safe for use from any
    thread."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._compiler: Any = None
        self._has_end = True

    def build(self, call: GrammarCall) -> Grammar | EbnfGrammar:
        """Raises NaiadError."""
        if call.kind not in KINDS:
            raise invalid_arg(f"grammar kind is '{call.kind}', expected one of {', '.join(KINDS)}")
        is_openvino = self._model.engine_name == "openvino"
        try:
            text = (
                ""
                if call.kind == "structural_tag"
                else grammar_text(call, *(OPENVINO_LIMITS if is_openvino else ()))
            )
        except ValueError as error:
            raise _rejection(call, error) from None
        if is_openvino:
            if not text:
                raise invalid_arg(f"the openvino engine has no {call.kind}; the native engine does")
            return EbnfGrammar(text)
        if self._compiler is None:
            self._start()
        import xgrammar

        try:
            compiled = self._compile(call, text)
        except (RuntimeError, ValueError, TypeError) as error:
            raise _rejection(call, error) from None
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=not self._has_end)
        return XgrammarGrammar(matcher)

    def _start(self) -> None:
        model = self._model
        if find_spec("xgrammar") is None:
            raise invalid_arg(f"structured output needs xgrammar: {install_command('grammar')}")
        # Imported here because schemas are also read without the package `tokenizers`.
        from naiad.llm.text.tokenizer import Tokenizer

        if not isinstance(model.tokenizer, Tokenizer):
            raise invalid_arg("structured output needs the model's tokenizer")
        import xgrammar

        tokenizer = model.tokenizer
        # Special tokens must stay out of strings, because their text is not sent to the client.
        vocabulary = [
            ""
            if token in tokenizer.special_token_ids
            else tokenizer.backend.id_to_token(token) or ""
            for token in range(tokenizer.vocab_size)
        ]
        ends = list(tokenizer.eos_token_ids)
        self._has_end = bool(ends)
        kind = (
            xgrammar.VocabType.BYTE_LEVEL
            if tokenizer.is_byte_level
            else xgrammar.VocabType.BYTE_FALLBACK
        )
        information = xgrammar.TokenizerInfo(
            vocabulary, kind, vocab_size=model.vocab_size, stop_token_ids=ends or None
        )
        self._compiler = xgrammar.GrammarCompiler(
            information, max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES
        )

    def _compile(self, call: GrammarCall, text: str) -> Any:
        if call.kind == "structural_tag":
            json.loads(call.value)  # a ValueError becomes the request's error
            return self._compiler.compile_structural_tag(call.value)
        return self._compiler.compile_grammar(text)


def grammar_text(call: GrammarCall, max_text: int = MAX_TEXT, max_wide: int = MAX_WIDE) -> str:
    """Returns the grammar as text. Raises NaiadError, and ValueError for a schema that is not
    JSON."""
    rules = _rules(call, max_text)
    check(rules)  # before repeats are written out
    return render(lower(rules), max_wide)


def _rules(call: GrammarCall, max_text: int) -> Rules:
    match call.kind:
        case "json_object":
            # OpenAI promises an object; JSON in general may be a bare number.
            return schema_rules({"type": "object"})
        case "json_schema":
            return schema_rules(plain_schema(json.loads(call.value)), max_text)
        case "regex":
            return {ROOT: read_expression(call.value)}
        case _:
            return read_grammar(call.value)


def _rejection(call: GrammarCall, error: Exception) -> NaiadError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return invalid_arg(f"the {call.kind} of the request cannot be used: {lines[-1][:300]}")


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
