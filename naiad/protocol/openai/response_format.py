"""The format that a client demands of the text: `response_format` and the guided_* fields of other
servers -> a GrammarCall."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from naiad.ipc.generation_call import GrammarCall
from naiad.protocol.openai.body import GenerationBody
from naiad.protocol.openai.error import bad_request

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def read_format(body: GenerationBody) -> GrammarCall | None:
    """Raises OpenAiError."""
    given = [name for name in _GUIDED if getattr(body, name) is not None]
    if len(given) + (body.response_format is not None) > 1:
        raise bad_request(
            f"Only one of 'response_format' and {', '.join(_GUIDED)} may be set", given[0]
        )
    if body.response_format is not None:
        return response_format(body.response_format, "response_format")
    if body.guided_json is not None:
        text = (
            body.guided_json
            if isinstance(body.guided_json, str)
            else msgspec.json.encode(body.guided_json).decode()
        )
        return GrammarCall("json_schema", text)
    if body.guided_regex is not None:
        return GrammarCall("regex", body.guided_regex)
    if body.guided_choice is not None:
        if not body.guided_choice:
            raise bad_request("'guided_choice' is empty", "guided_choice")
        return GrammarCall(
            "regex", "|".join(f"({re.escape(choice)})" for choice in body.guided_choice)
        )
    if body.guided_grammar is not None:
        return GrammarCall("ebnf", body.guided_grammar)
    return None


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
