"""Tests of rewritten schemas: every text that the grammar allows fits the schema as it was sent,
and keywords that cannot be enforced are rejected by name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from naiad.backends.llm.grammar import GrammarCompiler
from naiad.backends.llm.grammar_text import grammar_text
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.schema import plain_schema
from naiad.backends.llm.text_process import TextProcesses
from naiad.errors import Code, NaiadError
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.generation import EbnfGrammar
from naiad.llm.grammar import text_format
from naiad.llm.grammar.lower import lower
from naiad.llm.grammar.schema import schema_rules
from tests.unit.llm.grammar import derivation

END = 256
NUM_WALKS = 40
MAX_BYTES = 400


def obj(**fields: Any) -> dict[str, Any]:
    return {"type": "object", **fields}


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


NULL = {"type": "null"}
TREE = {
    "$defs": {
        "n": obj(
            properties={"next": {"anyOf": [{"$ref": "#/$defs/n"}, NULL]}},
            required=["next"],
            additionalProperties=False,
        )
    },
    "$ref": "#/$defs/n",
}
ENFORCED: list[Any] = [
    {"type": "string", "minLength": 1, "maxLength": 3}, {"type": "string", "minLength": 2},
    {"minLength": 2}, {"minimum": 3},
    {"minItems": 1},
    text("^[^\"\\\\]{2,3}$"), text("a+"), text("^(a|b)*c$"), text("^[\"x]+$"), text("^[\\\\x]+$"),
    text("^[!-~]+$"),
    text("\\w+@\\w+\\.com"), text('^"$'), text("\\\\"), text("^a\\n$"), text("^[\\x22]$"),
    text(""), text("^.{0,3}$"), text("[^a]*"),
    {"type": "string", "format": "uuid"}, {"type": "string", "format": "date-time"},
    {"type": "string", "format": "nonsense", "maxLength": 2},
    {"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 10},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 7}, {"type": "integer", "minimum": -105, "maximum": 1203},
    {"type": "integer", "maximum": -7},
    {"type": "integer", "minimum": 2.5, "exclusiveMaximum": 4},
    {"type": "number", "minimum": -1.25, "maximum": 2.5},
    {"type": "number", "minimum": 99.95},
    {"type": "number", "exclusiveMaximum": -0.5}, {"type": "number", "minimum": 3, "maximum": 3},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 360},
    {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.75},
    {"type": "number", "exclusiveMinimum": -3, "maximum": 0},
    {"type": "number", "exclusiveMinimum": 9.99, "maximum": 10},
    {"type": "string", "maxLength": 300},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "array", "prefixItems": [NULL, {"type": "boolean"}], "items": False, "minItems": 1},
    {"type": "array", "items": NULL, "maxItems": 0},
    {"type": "array", "prefixItems": [NULL, NULL], "maxItems": 1},
    {"type": ["integer", "string", "null"], "minimum": 3, "maxLength": 2}, {"type": "array"},
    {"type": "array", "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [NULL], "items": {"type": "boolean"}, "minItems": 2},
    obj(properties={"a": NULL, "b": NULL}, required=["b"]), obj(required=["zz"]),
    obj(properties={"a": NULL}, required=["q", "a"]),
    obj(additionalProperties={"type": "boolean"}, required=["q"], properties={"a": NULL}),
    obj(patternProperties={"^x": {"type": "integer"}}),
    *({"type": "string", "format": name} for name in text_format.FORMATS),
    obj(minProperties=1, maxProperties=3, additionalProperties=NULL),
    obj(properties={"a": NULL, "b": NULL, "c": NULL}, minProperties=2),
    obj(properties={"a": NULL, "b": NULL, "c": NULL}, maxProperties=1),
    obj(properties={"a": NULL}, minProperties=2, additionalProperties={"type": "boolean"}),
    obj(patternProperties={'"': NULL}),
    obj(properties={"a": NULL, "ab": NULL, "": NULL, 'q"': NULL},
        additionalProperties={"type": "integer"}),
    obj(properties={"a": False, "b": NULL}),
    obj(propertyNames={"enum": ["x", "y"]}, additionalProperties=NULL),
    obj(propertyNames={"maxLength": 2}, additionalProperties=NULL),
    {"enum": [1, "1", None, 1.5, {"a": 1}]}, {"type": "string", "enum": ["a", 1]},
    {"type": "number", "enum": [1, 2.5, "x"]},
    {"const": 'a"b\\c\n\u00e9'}, {"const": True, "enum": [1, True]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    {"anyOf": [{"type": "integer"}, NULL], "maximum": 5, "title": "t"},
    {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 3}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [obj(properties={"k": {"const": "a"}}, required=["k"]),
        obj(properties={"k": {"const": "b"}}, required=["k"])]},
    {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": NULL, "b": {"type": "boolean"}}},
    {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "boolean"}], "$defs": {"a/b": NULL}},
    {"allOf": [{"$ref": "#/$defs/b"}, {"properties": {"c": NULL}}],
        "$defs": {"b": obj(properties={"a": NULL}, required=["a"])}},
    obj(properties={"a": NULL, "b": NULL}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]), TREE,
    True, {}, {"type": "object"},
]  # fmt: skip
REJECTED: list[tuple[Any, str]] = [
    ({"not": {}}, "'not'"), ({"if": {}, "then": {}}, "'if'"),
    ({"type": "array", "contains": NULL}, "'contains'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "number", "multipleOf": 3}, "'multipleOf'"),
    ({"type": "integer", "multipleOf": 100000}, "'multipleOf'"),
    (obj(dependentRequired={"a": ["b"]}), "'dependentRequired'"),
    ({"type": "string", "minLength": 1, "pattern": "a"}, "'minLength' next to 'pattern'"),
    ({"enum": ["ab"], "maxLength": 1}, "'maxLength'"),
    ({"type": "string", "format": "date", "maxLength": 3}, "'maxLength' next to 'format'"),
    (text("(?=a)b"), r"'\(\?="), (text("(a)\\1"), r"which cannot be enforced"),
    ({"type": "string", "pattern": 3}, "'pattern' at '#'"),
    (obj(patternProperties={"(": NULL}), "not closed"),
    (obj(patternProperties={"a": NULL, "b": NULL}), "several patterns"),
    (obj(minProperties=2, additionalProperties=NULL), "two names could be the same"),
    (obj(properties={"a": NULL}, minProperties=2), "no value fits"),
    (obj(properties={"a": NULL}, propertyNames={"maxLength": 2}, additionalProperties=NULL),
        "'propertyNames'"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no value fits"),
    ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, "no value fits"),
    ({"type": "integer", "minimum": "3"}, "'minimum' at '#'"),
    ({"type": "integer", "minimum": 1e300}, "'minimum' of more than"),
    ({"type": "string", "minLength": -1}, "'minLength' at '#'"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no value fits"),
    ({"type": "string", "minLength": 1000}, "'minLength' above"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "no value fits"),
    ({"type": "array", "minItems": 100000}, "times"), ({"type": "date"}, "not a JSON type"),
    ({"enum": ["\ud800"]}, "no text for"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no end"),
    ({"type": "integer", "multipleOf": 3, "minimum": 0}, "'multipleOf'"),
    (obj(properties={"xa": NULL}, patternProperties={"^x": {"type": "integer"}}),
        "'patternProperties'"),
    (obj(required=["q"], properties={}, additionalProperties=False), "names 'q'"),
    (obj(required="q"), "'required'"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf'"), ({"anyOf": []}, "'anyOf'"),
    ({"type": []}, "'type'"),
    ({"type": "string", "const": 1}, "no value fits"), ({"$ref": "#"}, "refers to itself"),
    ({"$ref": "#/x"}, "no such place"),
    ({"$ref": "https://example.org/a"}, "expected a place inside it"),
    ({"$ref": "#/$defs/a", "$defs": {"a": NULL}, "minimum": 1}, "'minimum'"),
    ({"anyOf": [obj(properties={"a": NULL})], "additionalProperties": False},
        "'additionalProperties'"),
    (obj(properties={"a": {"items": 3}}), "'#/properties/a/items'"), (3, "expected an object"),
    (obj(properties=[]), "expected an object"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), REJECTED, ids=lambda value: json.dumps(value)[:60])
def test_rejects_keywords_that_cannot_be_enforced(schema: Any, message: str) -> None:
    with pytest.raises(NaiadError, match=message) as rejection:
        grammar_of(schema)
    assert rejection.value.code is Code.INVALID_ARG


def test_rejects_a_schema_that_is_too_deep() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(NaiadError, match="nested too deeply"):
        plain_schema(deep)


def grammar_of(schema: Any) -> str:
    return grammar_text(GrammarCall("json_schema", json.dumps(schema)))


@pytest.mark.parametrize("schema", ENFORCED, ids=lambda value: json.dumps(value)[:60])
def test_every_text_of_the_grammar_fits_the_schema(schema: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the oracle is jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    rules = lower(schema_rules(plain_schema(schema)))
    texts = [derivation.derive(rules, random.Random(seed)) for seed in range(4 * NUM_WALKS)]
    complete = [text for text in texts if text is not None]
    assert complete
    for one in complete:
        assert validator.is_valid(json.loads(one)), one


@pytest.mark.parametrize("schema", ENFORCED, ids=lambda value: json.dumps(value)[:60])
def test_every_walk_of_the_library_fits_the_schema(schema: Any) -> None:
    xgrammar = pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    jsonschema = pytest.importorskip("jsonschema", reason="the oracle is jsonschema")
    vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[END])
    )
    compiled = compiler.compile_grammar(grammar_of(schema))
    validator = jsonschema.Draft202012Validator(schema)
    texts = [
        walk(xgrammar.GrammarMatcher(compiled), random.Random(seed)) for seed in range(NUM_WALKS)
    ]
    complete = [text for text in texts if text is not None]
    assert complete
    for one in complete:
        assert validator.is_valid(json.loads(one)), one


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (
            {"type": "integer", "minimum": -105, "maximum": 1203},
            ["-105", "-99", "-1", "0", "7", "1203", "999"],
        ),
        (
            {"type": "number", "minimum": -1.25, "maximum": 2.5},
            ["-1.25", "-1", "-0.3", "0", "0.001", "2.5", "2.49999", "2.500"],
        ),
        ({"type": "number"}, ["-0.5e-10", "1E+5", "12345.678"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "-49", "1001"]),
        ({"type": "string"}, ['""', '"a \\"quoted\\" \\u00e9 \\n word: \u00e9\U0001f600"']),
        (
            obj(properties={"a": NULL, "b": NULL, "c": NULL}, required=["b"]),
            ['{"b": null}', '{"a": null, "b": null, "c": null}', '{"b": null, "c": null}'],
        ),
        (
            obj(properties={"a": NULL}, additionalProperties={"type": "integer"}),
            ["{}", '{"a": null, "ab": 1, "b": 2}', '{"": 1}'],
        ),
        (
            {"anyOf": [{"$ref": "#"}, NULL, {"type": "array", "items": {"$ref": "#"}}]},
            ["null", "[]", "[null, [null]]"],
        ),
        ({"type": "object"}, ['{"x": [1, {"y": "z"}, []], "w": {}}']),
        (
            {"type": "array", "prefixItems": [NULL], "items": {"type": "boolean"}},
            ["[]", "[null]", "[null, true, false]"],
        ),
    ],
)
def test_allows_texts_that_models_write(schema: Any, texts: list[str]) -> None:
    rules = lower(schema_rules(plain_schema(schema)))
    for one in texts:
        assert derivation.accepts(rules, one), one


@pytest.fixture(scope="module")
def processes() -> Iterator[TextProcesses]:
    processes = TextProcesses()
    yield processes
    processes.close()


def compiler_for(engine: str, processes: TextProcesses) -> GrammarCompiler:
    model = SimpleNamespace(engine_name=engine, vocab_size=512, tokenizer=None)
    return GrammarCompiler(cast("OpenModel", model), processes)


@pytest.mark.parametrize("engine", ["native", "openvino"])
def test_both_engines_reject_the_same_grammars(engine: str, processes: TextProcesses) -> None:
    compiler = compiler_for(engine, processes)
    for schema, message in REJECTED:
        with pytest.raises(NaiadError, match=message):
            compiler.build(GrammarCall("json_schema", json.dumps(schema)))
    for call in (
        GrammarCall("regex", "(?=a)"),
        GrammarCall("ebnf", "root ::= x"),
        GrammarCall("json_schema", "{"),
        GrammarCall("haiku"),
    ):
        with pytest.raises(NaiadError) as rejection:
            compiler.build(call)
        assert rejection.value.code is Code.INVALID_ARG


def test_openvino_gets_the_text_of_the_grammar(processes: TextProcesses) -> None:
    compiler = compiler_for("openvino", processes)
    assert compiler.build(GrammarCall("regex", "a|b")) == EbnfGrammar("root ::= [a] | [b]\n")
    with pytest.raises(NaiadError, match="the openvino engine has no structural_tag"):
        compiler.build(GrammarCall("structural_tag", "{}"))
    long = compiler.build(
        GrammarCall("json_schema", json.dumps({"type": "string", "maxLength": 5000}))
    )
    assert isinstance(long, EbnfGrammar)
    assert "text-0-256 ::=" in long.text
    with pytest.raises(NaiadError, match="this model accepts 512"):
        compiler.build(GrammarCall("regex", ".{600}"))


def walk(matcher: Any, source: random.Random) -> bytes | None:
    """Draws random bytes that the grammar allows and prefers ends. Returns None if the text did not
    end."""
    text = b""
    mask = np.zeros((1, -(-(END + 1) // 32)), np.int32)
    for _ in range(MAX_BYTES):
        matcher.fill_next_token_bitmask(mask, 0)
        allowed = np.flatnonzero(
            np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1]
        ).tolist()
        ends = [token for token in allowed if token in (END, *b'"]}')]
        token = source.choice(ends if ends and source.random() < 0.3 else allowed)
        assert matcher.accept_token(token)
        if token == END:
            return text
        text += bytes([token])
    return None
