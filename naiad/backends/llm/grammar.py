"""Structured output: builds the grammar that a request demands of its response. The engine turns
the grammar into a token mask per step.

In:  a GrammarCall. Out: naiad.llm.generation.Grammar for the native engine, compiled by xgrammar
     for the model's vocabulary; EbnfGrammar for the OpenVINO engine, which contains that library.
Rule: both are built from the text that naiad.llm.grammar writes, so both engines reject a grammar
      with the same INVALID_ARG.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.structural_tag import check_structural_tag
from naiad.backends.llm.text_process import TextProcesses
from naiad.backends.llm.text_work import GrammarWork
from naiad.core.install_advice import install_command
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.generation_call import GrammarCall
from naiad.llm import import_ahead
from naiad.llm.generation import EbnfGrammar, Grammar
from naiad.llm.grammar.rules import MAX_PLACES, MAX_REPEATS
from naiad.llm.grammar.schema import MAX_TEXT

MAX_CACHE_BYTES = 256 << 20
MAX_COMPILE_WORK = 1 << 25
"""Maximum number of places for many characters, times the size of the vocabulary: some 7 s of one
processor, on a thread that delays nobody but other grammars."""
MAX_OF_REPEAT = 128
"""The library treats the places of a longer repeat alike; OpenVINO's version does not."""
OPENVINO_LIMITS = (256, 512, MAX_REPEATS)
"""Maximum length of a bounded text, maximum number of places for many characters, and of those of
one repeat. They are small because OpenVINO compiles between two steps, while all other requests
wait."""


def import_library() -> None:
    """Imports the grammar library on a thread, meanwhile a model is loaded. Later it would hold
    the interpreter for most of a second, and every stream would wait. If the import fails, the
    first request with a grammar gets the error."""
    if find_spec("xgrammar") is not None:
        import_ahead.start("xgrammar")


class GrammarCompiler:
    """Compiles grammars for one model and caches them by their text. Safe for use from any
    thread."""

    def __init__(self, model: OpenModel, processes: TextProcesses) -> None:
        self._model = model
        self._processes = processes
        self._compiler: Any = None
        self._has_end = True
        if model.engine_name == "native" and find_spec("xgrammar") is not None:
            # Requests would wait for it: reading the vocabulary is work in Python.
            with contextlib.suppress(NaiadError):
                self._start()

    def build(self, call: GrammarCall) -> Grammar | EbnfGrammar:
        """Raises NaiadError. `call` has been checked."""
        is_openvino = self._model.engine_name == "openvino"
        if is_openvino and call.kind == "structural_tag":
            raise invalid_arg(f"the openvino engine has no {call.kind}; the native engine does")
        limits = (
            OPENVINO_LIMITS
            if is_openvino
            else (
                MAX_TEXT,
                min(MAX_PLACES, MAX_COMPILE_WORK // max(1, self._model.vocab_size)),
                MAX_OF_REPEAT,
            )
        )
        text = (
            ""
            if call.kind == "structural_tag"
            else self._processes.run(GrammarWork(call, *limits)).text
        )
        if is_openvino:
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
            check_structural_tag(call.value)
            return self._compiler.compile_structural_tag(call.value)
        return self._compiler.compile_grammar(text)


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
