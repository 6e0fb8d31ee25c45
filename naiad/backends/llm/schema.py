"""Rewrites a request's JSON schema into one with the same or a narrower meaning that uses only the
keywords the grammar library enforces.

In:  the schema as the client sent it. Out: the schema to compile. A keyword that the library would
     ignore is the request's INVALID_ARG, with its name.
Rule: every value that fits the result fits the schema that was sent. The result is narrower in that
      objects have the listed properties in the listed order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from naiad.errors import NaiadError, invalid_arg
from naiad.llm.grammar.reference import find_reference

Schema: TypeAlias = dict[str, Any]

_GROUPS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    ),
}  # fmt: skip
_GROUPS["integer"] = _GROUPS["number"]
_TYPED = frozenset(name for names in _GROUPS.values() for name in names)
_COMBINING = ("anyOf", "oneOf", "allOf", "$ref")
_HOLDERS = ("$defs", "definitions")
_MEANINGFUL = frozenset({*_TYPED, *_COMBINING, *_HOLDERS, "type", "enum", "const"})
_UNSUPPORTED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains",
    "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_FORMATS = frozenset({
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uri",
    "uri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "uuid",
})  # fmt: skip
MAX_MULTIPLE = 512
"""The library ignores a larger `multipleOf`."""


def plain_schema(schema: Any) -> Any:
    """Raises NaiadError."""
    try:
        return _Reader(schema).read(schema, "#")
    except RecursionError:
        raise invalid_arg("the schema is nested too deeply") from None


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root

    def read(self, schema: Any, path: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise invalid_arg(
                f"the schema has a {type(schema).__name__} at '{path}', expected an object"
            )
        for name in _UNSUPPORTED:
            if name in schema:
                raise _unenforceable(name, path)
        keywords = {name: value for name, value in schema.items() if name in _MEANINGFUL}
        definitions = {
            name: self._each(keywords.pop(name), f"{path}/{name}")
            for name in _HOLDERS
            if name in keywords
        }
        if any(name in keywords for name in _COMBINING):
            return definitions | self._combined(keywords, path)
        if "enum" in keywords or "const" in keywords:
            return definitions | _values(keywords, path)
        return definitions | self._typed(keywords, path)

    def _each(self, schemas: Any, path: str) -> Schema:
        if not isinstance(schemas, dict):
            raise invalid_arg(
                f"the schema has a {type(schemas).__name__} at '{path}', expected an object"
            )
        return {name: self.read(value, f"{path}/{name}") for name, value in schemas.items()}

    # anyOf, oneOf, allOf, $ref.

    def _combined(self, keywords: Schema, path: str) -> Schema:
        kind, *others = [name for name in _COMBINING if name in keywords]
        rest = {name: value for name, value in keywords.items() if name != kind}
        if others:
            raise _unenforceable(others[0], path, f"next to '{kind}'")
        if kind == "$ref":
            if rest:
                raise _unenforceable(next(iter(rest)), path, "next to '$ref'")
            self._resolve(keywords, path)
            return keywords
        branches = keywords[kind]
        if not isinstance(branches, list) or not branches:
            raise invalid_arg(
                f"keyword '{kind}' at '{path}' of the schema is not a list of schemas"
            )
        if kind == "allOf":
            return self._all(rest, branches, path)
        whole = [
            self._merged(rest, branch, f"{path}/{kind}/{index}") if rest else branch
            for index, branch in enumerate(branches)
        ]
        if kind == "oneOf" and not _are_disjoint([self._resolve(branch, path) for branch in whole]):
            raise _unenforceable("oneOf", path, "with schemas that the same value could fit")
        return {
            "anyOf": [
                self.read(branch, f"{path}/{kind}/{index}")
                for index, branch in enumerate(whole)
                if branch is not False
            ]
        }

    def _all(self, rest: Schema, branches: list[Any], path: str) -> Schema:
        if not rest and len(branches) == 1:
            branch = self.read(branches[0], f"{path}/allOf/0")
            return branch if isinstance(branch, dict) else {"anyOf": [branch]}
        merged = rest
        for index, branch in enumerate(branches):
            merged = self._merged(merged, self._resolve(branch, path), f"{path}/allOf/{index}")
        read: Schema = self.read(merged, path)
        return read

    def _merged(self, first: Schema, second: Any, path: str) -> Schema:
        """Joins two schemas that must both hold. Raises NaiadError unless their keywords can simply
        be written into one schema."""
        if not isinstance(second, dict) or any(
            name in side for side in (first, second) for name in _COMBINING
        ):
            raise invalid_arg(
                f"the schema at '{path}' cannot be joined with the keywords next to it"
            )
        result = dict(first)
        for name, value in second.items():
            if name not in _MEANINGFUL and name not in _UNSUPPORTED:
                continue
            if name == "required" and name in first:
                result[name] = [*first[name], *value]
            elif name == "properties" and name in first and not first[name].keys() & value.keys():
                result[name] = first[name] | value
            elif name in first and first[name] != value:
                raise _unenforceable(name, path, "in two schemas that must both hold")
            else:
                result[name] = value
        for one, other in ((first, second), (second, first)):
            for limit, named in (
                ("additionalProperties", ("properties", "patternProperties")),
                ("items", ("prefixItems",)),
            ):
                # Each limit refers only to the names of its own schema.
                if limit in one and one[limit] is not True and any(name in other for name in named):
                    raise _unenforceable(limit, path, "in two schemas that must both hold")
        return result

    def _resolve(self, schema: Any, path: str) -> Any:
        """Follows a chain of references to its end."""
        seen = set()
        while isinstance(schema, dict) and "$ref" in schema:
            pointer = schema["$ref"]
            schema = find_reference(self._root, pointer, path)
            if pointer in seen:
                raise invalid_arg(f"'$ref' at '{path}' of the schema refers to itself")
            seen.add(pointer)
        return schema

    # One type, or several.

    def _typed(self, keywords: Schema, path: str) -> Schema:
        types = keywords.get("type")
        if types is None:
            types = [
                kind
                for kind in ("string", "number", "array", "object")
                if any(name in keywords for name in _GROUPS[kind])
            ]
            if not types:
                return {}
        types = types if isinstance(types, list) else [types]
        if not types:
            raise invalid_arg(f"keyword 'type' at '{path}' of the schema is empty")
        allowed = {
            name for kind in types if isinstance(kind, str) for name in _GROUPS.get(kind, ())
        }
        kept = {name: value for name, value in keywords.items() if name in allowed}
        self._string(kept, path)
        _number(kept, types, path)
        self._array(kept, path)
        if "array" in types and "prefixItems" not in kept:
            # Without `items`, the library would allow only an empty list.
            kept.setdefault("items", True)
        self._object(kept, path)
        return {"type": types[0] if len(types) == 1 else types} | kept

    def _string(self, kept: Schema, path: str) -> None:
        if kept.get("format") not in _FORMATS:
            kept.pop("format", None)  # an annotation
        shapes = [name for name in ("pattern", "format") if name in kept]
        others = [
            name
            for name in ("format", "minLength", "maxLength")
            if name in kept and [name] != shapes
        ]
        if shapes and others:
            raise _unenforceable(others[0], path, f"next to '{shapes[0]}'")
        if not isinstance(kept.get("pattern", ""), str):
            raise invalid_arg(f"keyword 'pattern' at '{path}' of the schema is not a string")

    def _array(self, kept: Schema, path: str) -> None:
        if kept.pop("uniqueItems", False):
            raise _unenforceable("uniqueItems", path)
        if "items" in kept:
            kept["items"] = self.read(kept["items"], f"{path}/items")
        if isinstance(kept.get("prefixItems"), list):
            kept["prefixItems"] = [
                self.read(item, f"{path}/prefixItems/{index}")
                for index, item in enumerate(kept["prefixItems"])
            ]

    def _object(self, kept: Schema, path: str) -> None:
        for name in ("properties", "patternProperties"):
            if name in kept:
                kept[name] = self._each(kept[name], f"{path}/{name}")
        for name in ("additionalProperties", "propertyNames"):
            if name in kept:
                kept[name] = self.read(kept[name], f"{path}/{name}")
        if "patternProperties" in kept:
            _check_patterns(kept["patternProperties"], kept.get("properties", {}), path)
        required = kept.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise invalid_arg(
                f"keyword 'required' at '{path}' of the schema is not a list of names"
            )
        unlisted = [
            name for name in dict.fromkeys(required) if name not in kept.get("properties", {})
        ]
        if not unlisted:
            return
        other = kept.get("additionalProperties", True)
        if other is False or "patternProperties" in kept or "propertyNames" in kept:
            raise invalid_arg(
                f"keyword 'required' at '{path}' of the schema names '{unlisted[0]}', "
                f"which is not one of its properties"
            )
        kept["properties"] = kept.get("properties", {}) | dict.fromkeys(unlisted, other)


def _number(kept: Schema, types: list[Any], path: str) -> None:
    step = kept.get("multipleOf")
    if step is not None and ("number" in types or not isinstance(step, int) or step > MAX_MULTIPLE):
        raise _unenforceable(
            "multipleOf", path, f"for numbers that are not integers, or above {MAX_MULTIPLE},"
        )


def _check_patterns(schemas: Schema, properties: Schema, path: str) -> None:
    for pattern in schemas:
        try:
            is_shared = any(re.search(pattern, name) for name in properties)
        except re.error as error:
            raise invalid_arg(
                f"the pattern '{pattern}' at '{path}' of the schema cannot be read: {error}"
            ) from None
        if is_shared:
            raise _unenforceable(
                "patternProperties", path, "with a pattern that matches one of the properties"
            )


def _values(keywords: Schema, path: str) -> Schema:
    for name in keywords:
        if name in _TYPED:
            raise _unenforceable(name, path, "next to a list of values")
    values = keywords.get("enum", [keywords.get("const")])
    if not isinstance(values, list):
        raise invalid_arg(f"keyword 'enum' at '{path}' of the schema is not a list")
    if "const" in keywords:
        values = [value for value in values if _key(value) == _key(keywords["const"])]
    types = keywords.get("type")
    if types is not None:
        allowed = types if isinstance(types, list) else [types]
        values = [
            value
            for value in values
            if _type(value) in allowed or (_type(value) == "integer" and "number" in allowed)
        ]
    if not values:
        raise invalid_arg(f"no value fits the schema at '{path}'")
    return {"enum": values}


def _are_disjoint(branches: list[Any]) -> bool:
    return all(
        _differ(one, other) for index, one in enumerate(branches) for other in branches[index + 1 :]
    )


def _differ(one: Any, other: Any) -> bool:
    """True if the types and listed values show that no value can fit both."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if not set(_types(one)) & set(_types(other)):
        return True
    values = [_keys(side) for side in (one, other)]
    if values[0] is not None and values[1] is not None:
        return not values[0] & values[1]
    if _types(one) != ["object"] or _types(other) != ["object"]:
        return False
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    return any(
        _differ(one.get("properties", {}).get(name), other.get("properties", {}).get(name))
        for name in shared
    )


def _types(schema: Schema) -> list[str]:
    """Returns all types that a value may have; integers count as numbers."""
    kinds: Iterable[str]
    if "enum" in schema or "const" in schema:
        kinds = [_type(value) for value in schema.get("enum", [schema.get("const")])]
    else:
        types = schema.get("type", ["string", "number", "boolean", "null", "array", "object"])
        kinds = types if isinstance(types, list) else [types]
    return sorted({"number" if kind == "integer" else kind for kind in kinds})


def _keys(schema: Schema) -> set[str] | None:
    if "const" in schema:
        return {_key(schema["const"])}
    return {_key(value) for value in schema["enum"]} if "enum" in schema else None


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _unenforceable(name: str, path: str, where: str = "") -> NaiadError:
    return invalid_arg(
        f"keyword '{name}'{' ' + where if where else ''} at '{path}' of the schema "
        f"cannot be enforced here"
    )
