"""Schemas that are made plain: every text that their grammar allows fits the schema as it was sent; the rest is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from naiad.backends.llm_schema import plain_schema
from naiad.errors import Code, NaiadError

END = 256
NUM_WALKS = 40
MAX_BYTES = 400


def obj(**fields: Any) -> dict[str, Any]:
    return {"type": "object", **fields}


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


NULL = {"type": "null"}
TREE = {
    "$defs": {"n": obj(properties={"next": {"anyOf": [{"$ref": "#/$defs/n"}, NULL]}}, required=["next"], additionalProperties=False)},
    "$ref": "#/$defs/n",
}
ENFORCED: list[Any] = [
    {"type": "string", "minLength": 1, "maxLength": 3}, {"type": "string", "minLength": 2}, {"minLength": 2}, {"minimum": 3},
    {"minItems": 1},
    text("^[^\"\\\\]{2,3}$"), text("a+"), text("^(a|b)*c$"), text("^[\"x]+$"), text("^[\\\\x]+$"), text("^[!-~]+$"),
    text("\\w+@\\w+\\.com"),
    {"type": "string", "format": "uuid"}, {"type": "string", "format": "date-time"},
    {"type": "string", "format": "nonsense", "maxLength": 2},
    {"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 10}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": ["integer", "string", "null"], "minimum": 3, "maxLength": 2}, {"type": "array"},
    {"type": "array", "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [NULL], "items": {"type": "boolean"}, "minItems": 2},
    obj(properties={"a": NULL, "b": NULL}, required=["b"]), obj(required=["zz"]), obj(properties={"a": NULL}, required=["q", "a"]),
    obj(additionalProperties={"type": "boolean"}, required=["q"], properties={"a": NULL}),
    obj(patternProperties={"^x": {"type": "integer"}}),
    obj(minProperties=2, maxProperties=3, additionalProperties=NULL), obj(propertyNames={"maxLength": 2}, additionalProperties=NULL),
    {"enum": [1, "1", None, 1.5, {"a": 1}]}, {"type": "string", "enum": ["a", 1]}, {"type": "number", "enum": [1, 2.5, "x"]},
    {"const": 'a"b\\c\n\u00e9'}, {"const": True, "enum": [1, True]}, {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    {"anyOf": [{"type": "integer"}, NULL], "maximum": 5, "title": "t"}, {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 3}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [obj(properties={"k": {"const": "a"}}, required=["k"]), obj(properties={"k": {"const": "b"}}, required=["k"])]},
    {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": NULL, "b": {"type": "boolean"}}},
    {"allOf": [{"$ref": "#/$defs/b"}, {"properties": {"c": NULL}}], "$defs": {"b": obj(properties={"a": NULL}, required=["a"])}},
    obj(properties={"a": NULL, "b": NULL}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]), TREE, True, {}, {"type": "object"},
]  # fmt: skip
REFUSED: list[tuple[Any, str]] = [
    ({"not": {}}, "'not'"), ({"if": {}, "then": {}}, "'if'"), ({"type": "array", "contains": NULL}, "'contains'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"), ({"type": "number", "multipleOf": 3}, "'multipleOf'"),
    ({"type": "integer", "multipleOf": 100000}, "'multipleOf'"), (obj(dependentRequired={"a": ["b"]}), "'dependentRequired'"),
    ({"type": "string", "minLength": 1, "pattern": "a"}, "'minLength' beside 'pattern'"), ({"enum": ["ab"], "maxLength": 1}, "'maxLength'"),
    ({"type": "string", "format": "date", "maxLength": 3}, "'maxLength' beside 'format'"), (text('^"$'), "which cannot be enforced"),
    (text("\\\\"), "which cannot be enforced"), (text("^a\\n$"), "which cannot be enforced"),
    (text("^[\\x22]$"), "which cannot be enforced"),
    (text("(?=a)b"), r"'\(\?'"), (text("(a)\\1"), r"which cannot be enforced"),
    (obj(patternProperties={'"': NULL}), "which cannot be enforced"),
    (obj(properties={"xa": NULL}, patternProperties={"^x": {"type": "integer"}}), "'patternProperties'"),
    (obj(required=["q"], properties={}, additionalProperties=False), "names 'q'"), (obj(required="q"), "'required'"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf'"), ({"anyOf": []}, "'anyOf'"), ({"type": []}, "'type'"),
    ({"type": "string", "const": 1}, "no value fits"), ({"$ref": "#"}, "refers to itself"), ({"$ref": "#/x"}, "no such place"),
    ({"$ref": "https://example.org/a"}, "expected a place inside it"),
    ({"$ref": "#/$defs/a", "$defs": {"a": NULL}, "minimum": 1}, "'minimum'"),
    ({"anyOf": [obj(properties={"a": NULL})], "additionalProperties": False}, "'additionalProperties'"),
    (obj(properties={"a": {"items": 3}}), "'#/properties/a/items'"), (3, "expected an object"), (obj(properties=[]), "expected an object"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, words: str) -> None:
    with pytest.raises(NaiadError, match=words) as refused:
        plain_schema(schema)
    assert refused.value.code is Code.INVALID_ARG


def test_a_schema_that_is_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(NaiadError, match="nested too deeply"):
        plain_schema(deep)


@pytest.mark.parametrize("schema", ENFORCED, ids=lambda value: json.dumps(value)[:60])
def test_every_walk_through_the_grammar_fits_the_schema(schema: Any) -> None:
    xgrammar = pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    jsonschema = pytest.importorskip("jsonschema", reason="the oracle is jsonschema")
    words = [b"" if byte < 0x20 else bytes([byte]) for byte in range(256)] + [b"</s>"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, stop_token_ids=[END]))
    compiled = compiler.compile_json_schema(json.dumps(plain_schema(schema)), any_whitespace=False)
    validator = jsonschema.Draft202012Validator(schema)
    found = [walk(xgrammar.GrammarMatcher(compiled), random.Random(seed)) for seed in range(NUM_WALKS)]
    whole = [text for text in found if text is not None]
    assert whole
    for one in whole:
        assert validator.is_valid(json.loads(one)), one


def walk(matcher: Any, source: random.Random) -> bytes | None:
    """Random bytes that the grammar allows, with a liking for ends. None: it did not end."""
    text = b""
    mask = np.zeros((1, -(-(END + 1) // 32)), np.int32)
    for _ in range(MAX_BYTES):
        matcher.fill_next_token_bitmask(mask, 0)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1]).tolist()
        ends = [token for token in allowed if token in (END, *b'"]}')]
        token = source.choice(ends if ends and source.random() < 0.3 else allowed)
        assert matcher.accept_token(token)
        if token == END:
            return text
        text += bytes([token])
    return None
