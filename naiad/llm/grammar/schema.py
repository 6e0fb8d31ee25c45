"""Builds the rules of a grammar from a plain JSON schema, which naiad/backends/llm/schema.py
defines.

Rule: every text that the rules allow is JSON that fits the schema. They may allow less: objects
      have the listed properties in the listed order, numbers have a limited number of digits, and
      patterns match the whole text.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, TypeAlias

from naiad.errors import NaiadError, invalid_arg
from naiad.llm.grammar import json_text, number
from naiad.llm.grammar.character_set import in_json
from naiad.llm.grammar.expression import read_expression
from naiad.llm.grammar.reference import find_reference
from naiad.llm.grammar.rules import (
    EMPTY,
    ROOT,
    Node,
    Rule,
    Rules,
    choice,
    optional,
    repeat,
    series,
    walk,
)
from naiad.llm.grammar.text_format import FORMATS

Schema: TypeAlias = dict[str, Any]
MAX_TEXT = 4000
"""Maximum length of a string whose schema has a maxLength."""
MAX_NEEDED = 256
MAX_ITEMS = 256
"""Maximum length of an array whose schema has a maxItems."""
_SCALARS = {"boolean": choice("true", "false"), "null": series("null")}


def schema_rules(schema: Any, max_text: int = MAX_TEXT) -> Rules:
    """`max_text` bounds the length of strings whose schema has a maxLength. Raises NaiadError."""
    writer = _Writer(schema, max_text)
    try:
        writer.rules[ROOT] = writer.node(schema, "#")
    except RecursionError:
        raise invalid_arg("the schema is nested too deeply") from None
    return writer.whole()


class _Writer:
    def __init__(self, root: Any, max_text: int) -> None:
        self._root = root
        self._max_text = max_text
        self.rules: Rules = {}
        self._places: dict[str, str] = {}
        """Pointer of a reference -> its rule."""
        self._open: list[str] = []
        """References that are being followed with no character written since."""
        self._numbers = itertools.count()

    def whole(self) -> Rules:
        """Returns the rules that `root` reaches, without those of branches that no value fits."""
        known = self.rules | json_text.free_rules()
        names = [ROOT]
        for name in names:
            names += [
                part.name
                for part in walk(known[name])
                if isinstance(part, Rule) and part.name not in names
            ]
        return {name: known[name] for name in dict.fromkeys(names)}

    def node(self, schema: Any, path: str) -> Node:
        if schema is True or schema == {}:
            return json_text.VALUE
        if schema is False:
            raise _none(path)
        if "$ref" in schema:
            return self._reference(schema["$ref"], path)
        if "anyOf" in schema:
            return self._any(schema["anyOf"], path)
        if "enum" in schema:
            return choice(*(_literal(value, path) for value in schema["enum"]))
        types = schema.get("type")
        if types is None:
            return json_text.VALUE
        kinds = types if isinstance(types, list) else [types]
        return choice(*(self._typed(kind, schema, path) for kind in kinds))

    def _inner(self, schema: Any, path: str) -> Node:
        """Builds a node that follows a character, so every reference may be followed again."""
        held, self._open = self._open, []
        try:
            return self.node(schema, path)
        finally:
            self._open = held

    def _reference(self, pointer: str, path: str) -> Node:
        if pointer in self._open:
            raise _none(path)  # a reference to itself adds no values
        if pointer not in self._places:
            name = self._places[pointer] = f"ref-{next(self._numbers)}"
            self.rules[name] = EMPTY  # reserves the name
            self._open.append(pointer)
            try:
                self.rules[name] = self.node(find_reference(self._root, pointer, path), pointer)
            except NaiadError:
                del self._places[pointer], self.rules[name]
                raise
            finally:
                self._open.pop()
        return Rule(self._places[pointer])

    def _any(self, branches: list[Any], path: str) -> Node:
        """Leaves out branches that no value fits. If that is all of them, raises the error of the
        first one."""
        options: list[Node] = []
        failure: NaiadError | None = None
        for index, branch in enumerate(branches):
            try:
                options.append(self.node(branch, f"{path}/anyOf/{index}"))
            except NaiadError as error:
                if "no value fits" not in error.message:
                    raise
                failure = failure or error
        if not options:
            raise failure or _none(path)
        return choice(*options)

    def _typed(self, kind: Any, schema: Schema, path: str) -> Node:
        match kind:
            case "string":
                return self._string(schema, path)
            case "integer":
                limits = number.Limits(schema, path)
                step = schema.get("multipleOf")
                if step is None:
                    return number.integers(limits, path) if limits.are_set else json_text.INTEGER
                return number.multiples(step, limits, f"of-{next(self._numbers)}", self.rules, path)
            case "number":
                limits = number.Limits(schema, path)
                return number.numbers(limits, path) if limits.are_set else json_text.NUMBER
            case "array":
                return self._array(schema, path)
            case "object":
                return self._object(schema, path)
            case "boolean" | "null":
                return _SCALARS[kind]
        raise invalid_arg(
            f"keyword 'type' at '{path}' of the schema is {json.dumps(kind)[:80]}, "
            f"which is not a JSON type"
        )

    def _string(self, schema: Schema, path: str) -> Node:
        shape = schema["pattern"] if "pattern" in schema else FORMATS.get(schema.get("format", ""))
        if shape is not None:
            try:
                return series('"', read_expression(shape, in_json), '"')
            except NaiadError as error:
                raise invalid_arg(
                    f"the pattern at '{path}' of the schema cannot be used: {error.message}"
                ) from None
        at_least, at_most = _counts(schema, "minLength", "maxLength", path)
        if (at_least, at_most) == (0, None):
            return json_text.STRING
        if at_most is not None and at_least > at_most:
            raise _none(path)
        if at_least > MAX_NEEDED:
            raise invalid_arg(
                f"keyword 'minLength' above {MAX_NEEDED} at '{path}' of the schema "
                f"cannot be enforced here"
            )
        at_most = None if at_most is None else min(at_most, self._max_text)
        return json_text.sized_string(
            at_least, at_most if at_most is None else max(at_least, at_most), self.rules
        )

    # Arrays.

    def _array(self, schema: Schema, path: str) -> Node:
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            raise invalid_arg(
                f"keyword 'prefixItems' at '{path}' of the schema is not a list of schemas"
            )
        at_least, at_most = _counts(schema, "minItems", "maxItems", path)
        items = schema.get("items", True)
        if items is False:
            at_most = len(prefix) if at_most is None else min(at_most, len(prefix))
        if at_most is not None:
            if at_least > at_most:
                raise _none(path)
            at_most = min(at_most, max(at_least, MAX_ITEMS))
            prefix = prefix[:at_most]
        nodes = [
            self._inner(item, f"{path}/prefixItems/{index}") for index, item in enumerate(prefix)
        ]
        rest: Node = EMPTY
        has_rest = at_most is None or at_most > len(prefix)
        least = max(0, at_least - len(prefix))
        most = None if at_most is None else at_most - len(prefix)
        if has_rest and not prefix:
            return series(
                "[", self._list(self._named(self._inner(items, f"{path}/items")), least, most), "]"
            )
        if has_rest:
            rest = repeat(
                series(", ", self._named(self._inner(items, f"{path}/items"))), least, most
            )
        for index in range(len(nodes) - 1, -1, -1):
            item = series(", " if index else "", nodes[index], rest)
            rest = item if index < at_least else optional(item)
        return series("[", rest, "]")

    def _list(self, item: Node, at_least: int, at_most: int | None) -> Node:
        more = series(
            item,
            repeat(
                series(", ", item), max(0, at_least - 1), None if at_most is None else at_most - 1
            ),
        )
        return more if at_least else optional(more)

    def _named(self, node: Node) -> Node:
        """Makes a rule of a node that is used twice."""
        if isinstance(node, Rule):
            return node
        name = f"part-{next(self._numbers)}"
        self.rules[name] = node
        return Rule(name)

    # Objects.

    def _object(self, schema: Schema, path: str) -> Node:
        fields: Schema = schema.get("properties", {})
        required = set(schema.get("required", ()))
        at_least, at_most = _counts(schema, "minProperties", "maxProperties", path)
        is_closed = (
            bool(fields)
            and "additionalProperties" not in schema
            and "patternProperties" not in schema
        )
        more = None if is_closed else self._further(schema, list(fields), path)
        if at_most is not None and len(required) > at_most:
            raise _none(path)
        fields, required = self._usable(fields, required, at_most, path)
        for name in fields:  # the first listed properties fill up minProperties
            if len(required) < at_least:
                required.add(name)
        lacking = at_least - len(required)
        if lacking > 0 and more is None:
            raise _none(path)
        if lacking > 1:
            raise invalid_arg(
                f"keyword 'minProperties' at '{path}' of the schema cannot be enforced here: "
                f"two names could be the same"
            )
        spare = None if at_most is None else at_most - len(fields)
        ends = self._ends(more, max(0, lacking), spare)
        pairs = [
            (
                series(_literal(name, path), ": ", self._inner(field, f"{path}/properties/{name}")),
                name in required,
            )
            for name, field in fields.items()
        ]
        return series("{", self._pairs(pairs, *ends), "}")

    def _usable(
        self, fields: Schema, required: set[str], at_most: int | None, path: str
    ) -> tuple[Schema, set[str]]:
        """Leaves out properties that no value fits and optional ones beyond `at_most`."""
        kept: Schema = {}
        room = len(fields) if at_most is None else at_most - len(required)
        for name, field in fields.items():
            if field is False:
                if name in required:
                    raise _none(f"{path}/properties/{name}")
            elif name in required:
                kept[name] = field
            elif room > 0:
                room -= 1
                kept[name] = field
        return kept, set(required)

    def _further(self, schema: Schema, names: list[str], path: str) -> Node | None:
        """Returns a node for a pair whose name is not listed, or None if there may be none."""
        patterns = schema.get("patternProperties", {})
        other = schema.get("additionalProperties", True)
        if patterns:
            if len(patterns) > 1:
                raise invalid_arg(
                    f"keyword 'patternProperties' with several patterns at '{path}' of the schema "
                    f"cannot be enforced here"
                )
            ((pattern, value),) = patterns.items()
            key = series('"', read_expression(pattern, in_json), '"')
            if value is False:
                return None
            return self._pair(key, self._inner(value, f"{path}/patternProperties"))
        if other is False:
            return None
        if "propertyNames" in schema:
            if names:
                raise invalid_arg(
                    f"keyword 'propertyNames' next to 'properties' at '{path}' of the schema "
                    f"cannot be enforced here"
                )
            key = self._key(schema["propertyNames"], path)
        else:
            key = (
                json_text.key_other_than(names, self.rules, f"key-{next(self._numbers)}")
                if names
                else json_text.STRING
            )
        return self._pair(key, self._inner(other, f"{path}/additionalProperties"))

    def _key(self, schema: Any, path: str) -> Node:
        if schema is True or schema == {}:
            return json_text.STRING
        if isinstance(schema, dict) and schema.get("type") == "string":
            return self._string(schema, path)
        values = (
            [value for value in schema.get("enum", ()) if isinstance(value, str)]
            if isinstance(schema, dict)
            else []
        )
        if not values:
            raise invalid_arg(
                f"keyword 'propertyNames' at '{path}' of the schema cannot be enforced here"
            )
        return choice(*(_literal(value, path) for value in values))

    def _pair(self, key: Node, value: Node) -> Node:
        return self._named(series(key, ": ", value))

    def _ends(self, more: Node | None, at_least: int, at_most: int | None) -> tuple[Node, Node]:
        """Returns what may follow the listed properties if none of them was written, and if some
        were."""
        if more is None or at_most == 0:
            return EMPTY, EMPTY
        return self._list(more, at_least, at_most), repeat(series(", ", more), at_least, at_most)

    def _pairs(self, pairs: list[tuple[Node, bool]], first: Node, later: Node) -> Node:
        """Works from the last pair to the first: `first` continues an object with no pair yet,
        `later` one that has a pair."""
        num_leading = next(
            (index for index, (_, is_required) in enumerate(pairs) if is_required), len(pairs)
        )
        for index in range(len(pairs) - 1, -1, -1):
            pair, is_required = pairs[index]
            if index <= num_leading:  # the pair may be the first one written, or not
                pair = self._named(pair) if index else pair
                later = self._named(later) if later != EMPTY and num_leading else later
                first = series(pair, later) if is_required else choice(series(pair, later), first)
            later = (
                series(", ", pair, later)
                if is_required
                else series(optional(series(", ", pair)), later)
            )
        return first


def _literal(value: Any, path: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        raise invalid_arg(f"the schema has a value at '{path}' that JSON has no text for") from None
    return text


def _counts(schema: Schema, low: str, high: str, path: str) -> tuple[int, int | None]:
    for name in (low, high):
        value = schema.get(name, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 0
            or value != int(value)
        ):
            raise invalid_arg(
                f"keyword '{name}' at '{path}' of the schema is {json.dumps(value)[:80]}, "
                f"expected a count"
            )
    return int(schema.get(low, 0)), int(schema[high]) if high in schema else None


def _none(path: str) -> NaiadError:
    return invalid_arg(f"no value fits the schema at '{path}'")
