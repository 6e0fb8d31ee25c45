"""A target in this process: grammars of a client. The first byte of an input chooses the kind."""

from __future__ import annotations

import random

from naiad.backends.llm.text_work import GrammarWork, write_grammar
from naiad.errors import NaiadError
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.grammar.rules import MAX_PLACES, MAX_REPEATS
from naiad.llm.grammar.schema import MAX_TEXT
from tests.fuzz.mutation import mutated_json
from tests.fuzz.target import target

KINDS = ("json_schema", "regex", "ebnf")
TOKENS = (
    b'"type":', b'"object"', b'"properties":', b'"required":', b'"anyOf":', b'"$ref":',
    b'"#/$defs/',
    b'"enum":', b'"pattern":', b'"minItems":', b'"maxItems":', b'"minimum":', b'"multipleOf":',
    b'"format":', b'"additionalProperties":', b'"patternProperties":', b'"minLength":', b'"const":',
    b"(?:", b"(?=", b"\\d", b"\\w", b"\\b", b"[^", b"{2,5}", b"{0,9999}", b"*", b"+", b"?", b"|",
    b"\\p{L}",
    b"root ::= ", b"::=", b'"a"', b"[a-z]", b"#", b"\\x41", b"\\u0041", b"(", b")",
)  # fmt: skip


def mutated_grammar(data: bytes, chance: random.Random) -> bytes:
    return data[:1] + mutated_json(data[1:], chance)


@target(tokens=TOKENS, mutate=mutated_grammar, needs=("jinja2",))
def grammar(data: bytes) -> None:
    if not data:
        return
    call = GrammarCall(KINDS[data[0] % len(KINDS)], data[1:].decode("utf-8", "replace"))
    try:
        call.check()
        write_grammar(GrammarWork(call, MAX_TEXT, MAX_PLACES, MAX_REPEATS))
    except NaiadError:
        pass
