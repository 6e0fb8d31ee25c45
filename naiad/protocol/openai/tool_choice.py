"""Which tools a model may, must or must not call: `tools` and `tool_choice` -> what the template
sees and which format the text must have.

A grammar enforces a tool that must be called: then the model writes [{"name", "parameters"}, ...],
or only the arguments of the one that was named. A tool that may be called is written in the
model's own format, which ToolCallReader knows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.ipc.generation_call import GrammarCall
from naiad.protocol.openai.error import OpenAiError, bad_request

MAX_TOOLS = 128
MODES = ("none", "auto", "required")


class ToolPlan(msgspec.Struct, frozen=True):
    mode: str = "none"
    """One of none, auto, required and named."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the chat template sees."""
    names: frozenset[str] = frozenset()
    named: str = ""
    """The name of the tool that must be called, in mode named."""
    grammar: GrammarCall | None = None
    is_parallel: bool = True
    """False if a response may hold one call only. A grammar sees to that where calls are forced."""


def plan_tools(
    tools: list[dict[str, Any]] | None,
    choice: str | dict[str, Any] | None,
    *,
    is_parallel: bool = True,
) -> ToolPlan:
    """Raises OpenAiError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request(
                "'tool_choice' is only allowed when 'tools' are specified.", "tool_choice"
            )
        return ToolPlan()
    schemas = _schemas(tools)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, schemas, choice = _allowed(tools, schemas, choice)
    mode = "auto" if choice is None else choice
    if isinstance(mode, dict):
        return _named_plan(tools, schemas, mode)
    match mode:
        case "none":
            return ToolPlan()
        case "auto":
            return ToolPlan("auto", tools, frozenset(schemas), is_parallel=is_parallel)
        case "required":
            return ToolPlan(
                "required",
                tools,
                frozenset(schemas),
                grammar=_calls_grammar(schemas, is_parallel=is_parallel),
            )
    raise bad_request(
        f"Invalid value for 'tool_choice': '{mode}'. "
        "Supported values are: 'none', 'auto', and 'required'.",
        "tool_choice",
    )


def _schemas(tools: list[dict[str, Any]]) -> dict[str, Any]:
    if len(tools) > MAX_TOOLS:
        raise bad_request(
            f"'tools' has {len(tools)} entries, expected at most {MAX_TOOLS}", "tools"
        )
    found: dict[str, Any] = {}
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise bad_request(
                f"'tools[{at}]' is not a function, the only kind of tool that is supported",
                f"tools[{at}]",
            )
        name, schema = function.get("name"), function.get("parameters", {})
        if not isinstance(name, str) or not name:
            raise bad_request(
                f"Missing required parameter: 'tools[{at}].function.name'.",
                f"tools[{at}].function.name",
            )
        if not isinstance(schema, dict) and schema is not None:
            raise bad_request(
                f"'tools[{at}].function.parameters' is not a JSON schema",
                f"tools[{at}].function.parameters",
            )
        found[name] = schema or {"type": "object"}
    return found


def _named_plan(
    tools: list[dict[str, Any]], schemas: dict[str, Any], choice: dict[str, Any]
) -> ToolPlan:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise bad_request(
            "Invalid value for 'tool_choice': expected a mode or a function with its name",
            "tool_choice",
        )
    if name not in schemas:
        raise bad_request(f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice")
    return ToolPlan(
        "named", tools, frozenset(schemas), name, GrammarCall("json_schema", _text(schemas[name]))
    )


def _allowed(
    tools: list[dict[str, Any]], schemas: dict[str, Any], choice: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """The allowed tools and the mode for them. Chat nests both; the Responses API does not."""
    holder = choice.get("allowed_tools", choice)
    try:
        wanted = {
            entry["function"]["name"] if "function" in entry else entry["name"]
            for entry in holder["tools"]
        }
        mode: str = holder["mode"]
    except (KeyError, TypeError):
        raise _bad_allowed("expected a mode and tools with their names") from None
    if unknown := wanted - schemas.keys():
        raise _bad_allowed(f"'{sorted(unknown)[0]}' is not one of 'tools'")
    if not wanted:
        raise _bad_allowed("it allows no tool")
    return (
        [tool for tool in tools if tool["function"]["name"] in wanted],
        {name: schemas[name] for name in schemas if name in wanted},
        mode,
    )


def _bad_allowed(reason: str) -> OpenAiError:
    return bad_request(f"Invalid value for 'tool_choice.allowed_tools': {reason}", "tool_choice")


def _calls_grammar(schemas: dict[str, Any], *, is_parallel: bool) -> GrammarCall:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, schema in schemas.items()
    ]
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    whole: dict[str, Any] = {"type": "array", "minItems": 1, "items": items}
    if not is_parallel:
        whole["maxItems"] = 1
    return GrammarCall("json_schema", _text(whole))


def _text(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()
