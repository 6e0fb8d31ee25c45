"""The format that a client demands of the text: `response_format`, and vLLM's `structured_outputs`
and guided_* fields -> a GrammarCall."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from naiad.ipc.generation_call import GrammarCall
from naiad.protocol.openai.body import GenerationBody, ResponsesBody
from naiad.protocol.openai.error import bad_request

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FALLBACK = "disable_fallback"
"""Asks not to try another library, which is never done here."""
_FIELDS = ("response_format", "structured_outputs", *_GUIDED)


def read_format(body: GenerationBody | ResponsesBody) -> GrammarCall | None:
    """Raises OpenAiError."""
    given = [name for name in _FIELDS if getattr(body, name, None) is not None]
    if len(given) > 1:
        raise bad_request(f"Only one of {', '.join(map(repr, _FIELDS))} may be set", given[-1])
    if not given:
        return None
    name, value = given[0], getattr(body, given[0])
    if name == "response_format":
        return response_format(value, name)
    if name == "structured_outputs":
        return _structured(value)
    return _grammar(name.removeprefix("guided_"), value, name)


def _structured(value: dict[str, Any]) -> GrammarCall:
    """vLLM's field: one of several kinds. Raises OpenAiError."""
    given = [kind for kind in _STRUCTURED if value.get(kind) not in (None, False)]
    others = [name for name in value if value[name] and name not in (*_STRUCTURED, _FALLBACK)]
    if others:
        raise bad_request(
            f"'structured_outputs.{others[0]}' is not supported", f"structured_outputs.{others[0]}"
        )
    if len(given) != 1:
        raise bad_request(
            f"'structured_outputs' must have one of {', '.join(map(repr, _STRUCTURED))}",
            "structured_outputs",
        )
    return _grammar(given[0], value[given[0]], f"structured_outputs.{given[0]}")


def _grammar(kind: str, value: Any, param: str) -> GrammarCall:
    match kind, value:
        case "json_object", True:
            return GrammarCall("json_object")
        case "json" | "structural_tag", str() | dict():
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            return GrammarCall("json_schema" if kind == "json" else kind, text)
        case "regex", str():
            return GrammarCall("regex", value)
        case "grammar", str():
            return GrammarCall("ebnf", value)
        case "choice", []:
            raise bad_request(f"'{param}' is empty", param)
        case "choice", list() if all(isinstance(choice, str) for choice in value):
            return GrammarCall("regex", "|".join(f"({re.escape(choice)})" for choice in value))
    raise bad_request(f"Invalid type for '{param}'.", param, "invalid_type")


def response_format(given: dict[str, Any], param: str) -> GrammarCall | None:
    """Chat nests the schema in `json_schema`; the Responses API's `text.format` does not. Raises
    OpenAiError."""
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return GrammarCall("json_object")
        case "json_schema":
            holder = given.get("json_schema", given)
            schema = holder.get("schema") if isinstance(holder, dict) else None
            if not isinstance(schema, dict | bool):
                raise bad_request(
                    f"Missing required parameter: '{param}.json_schema.schema'.",
                    param,
                    "missing_required_parameter",
                )
            return GrammarCall("json_schema", msgspec.json.encode(schema).decode())
        case kind:
            raise bad_request(
                f"Invalid value for '{param}.type': {kind!r}. "
                "Supported values are: 'text', 'json_object', and 'json_schema'.",
                param,
            )
