"""Writes the grammar that a request demands as text, which both engines read.

In:  a GrammarCall. Out: text in the dialect of xgrammar. Rule: sizes are checked before the work.
"""

from __future__ import annotations

import json

from naiad.backends.llm.schema import plain_schema
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.grammar.expression import read_expression
from naiad.llm.grammar.lower import lower
from naiad.llm.grammar.reader import read_grammar
from naiad.llm.grammar.rules import MAX_PLACES, MAX_REPEATS, ROOT, Rules, check, render
from naiad.llm.grammar.schema import MAX_TEXT, schema_rules


def grammar_text(
    call: GrammarCall,
    max_text: int = MAX_TEXT,
    max_places: int = MAX_PLACES,
    max_of_repeat: int = MAX_REPEATS,
) -> str:
    """Returns the grammar as text. Raises NaiadError, and ValueError for a schema that is not
    JSON."""
    rules = _rules(call, max_text)
    check(rules)  # before repeats are written out
    return render(lower(rules), max_places, max_of_repeat)


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
