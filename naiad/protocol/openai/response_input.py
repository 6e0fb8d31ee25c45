"""POST /v1/responses: its body -> a GenerationCall. Items become chat messages, flat tools become
the nested tools of chat.

Nothing is stored: a request that refers to an earlier response is refused, and the client sends the
conversation itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad.ipc.generation_call import GenerationCall
from naiad.protocol.openai.body import ResponsesBody
from naiad.protocol.openai.chat import read_messages
from naiad.protocol.openai.error import OpenAiError, bad_request
from naiad.protocol.openai.fields import check_unread
from naiad.protocol.openai.response_format import read_format, response_format
from naiad.protocol.openai.sampling import responses_sampling
from naiad.protocol.openai.tool_choice import ToolPlan, plan_tools

_STORED = ("previous_response_id", "conversation")
_TEXT_PARTS = frozenset(("input_text", "output_text", "text"))


def decode_call(
    body: ResponsesBody, plan: ToolPlan, defaults: Mapping[str, Any], *, is_streamed: bool
) -> GenerationCall:
    """Raises OpenAiError."""
    for name in _STORED:
        if getattr(body, name) is not None:
            raise bad_request(
                f"'{name}' is not supported: responses are not stored, "
                "send the whole conversation as 'input'",
                name,
            )
    if body.background:
        raise bad_request("'background' is not supported: responses are not stored", "background")
    arguments = dict(body.chat_template_kwargs or {})
    effort = (body.reasoning or {}).get("effort")
    if isinstance(effort, str):
        arguments.setdefault("reasoning_effort", effort)
    text, place = body.text or {}, "text.format"
    check_unread({name: value for name, value in text.items() if name != "format"})
    text_format = text.get("format")
    if text_format is not None and not isinstance(text_format, dict):
        raise bad_request(f"Invalid type for '{place}': expected an object.", place, "invalid_type")
    if text_format is not None and body.structured_outputs is not None:
        raise bad_request(f"Only one of '{place}' and 'structured_outputs' may be set", place)
    return GenerationCall(
        messages=_messages(body),
        tools=plan.tools,
        template_arguments=arguments,
        parameters=responses_sampling(body, defaults),
        grammar=plan.grammar
        or (read_format(body) if text_format is None else response_format(text_format, place)),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        is_streamed=is_streamed,
    )


def read_plan(body: ResponsesBody) -> ToolPlan:
    """Raises OpenAiError."""
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return plan_tools(
        [_nested(tool) for tool in body.tools or []],
        choice,
        is_parallel=body.parallel_tool_calls is not False,
    )


def _nested(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {
        "type": "function",
        "function": {name: value for name, value in tool.items() if name != "type"},
    }


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    if not body.input:
        raise bad_request("'input' is empty, expected a text or at least one item", "input")
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for at, item in enumerate(body.input):
            _add_item(messages, item, f"input[{at}]")
    return read_messages(messages)


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    match item.get("type", "message"):
        case "message":
            if not isinstance(item.get("role"), str):
                raise bad_request(
                    f"Missing required parameter: '{place}.role'.",
                    f"{place}.role",
                    "missing_required_parameter",
                )
            messages.append(
                {"role": item["role"], "content": _content(item.get("content"), f"{place}.content")}
            )
        case "function_call":
            name, arguments = (
                _text_field(item, "name", place),
                _text_field(item, "arguments", place),
            )
            call = {
                "id": _text_field(item, "call_id", place),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            # consecutive calls belong to one message
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        case "function_call_output":
            content = _content(item.get("output"), f"{place}.output")
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": _text_field(item, "call_id", place),
                    "content": content,
                }
            )
        case "reasoning":
            pass  # a model does not see its earlier reasoning
        case kind:
            raise bad_request(
                f"'{place}' is an item of type '{kind}', which is not supported", f"{place}.type"
            )


def _text_field(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(
            f"Missing required parameter: '{place}.{name}'.",
            f"{place}.{name}",
            "missing_required_parameter",
        )
    return value


def _content(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad_content(place)
    return "".join(_part_text(part, f"{place}[{at}]") for at, part in enumerate(content))


def _part_text(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise bad_request(
            f"'{place}' is content of type '{kind}', this server takes text only", f"{place}.type"
        )
    raise _bad_content(place)


def _bad_content(place: str) -> OpenAiError:
    return bad_request(
        f"Invalid type for '{place}': expected text or a list of text parts.", place, "invalid_type"
    )
