"""The text of a config.pbtxt: written anew, or an existing text with other values in some fields.

In:  a ModelConfig, and for an edit the text as it is. Out: text in the style of our examples.
Rule: an edit changes only the fields whose values differ. Comments, order and fields that nobody
      asked to change stay as they are.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

from naiad.core.datatype import DATATYPES
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt_token import Kind, tokens

MAX_COLUMNS = 100
ORDER = (
    "name", "backend", "platform", "default_model_filename", "max_batch_size", "version_policy",
    "input", "output", "parameters", "instance_group", "dynamic_batching", "sequence_batching",
    "ensemble_scheduling", "model_transaction_policy",
)  # fmt: skip
"""The order of the fields in a new file; others follow in the order of their numbers."""


def render_config(config: ModelConfig) -> str:
    """Renders the fields that a person would write; reading the file fills in the others."""
    shown = ModelConfig(backend=config.backend, input=config.input, output=config.output)
    if config.HasField("dynamic_batching"):
        shown.dynamic_batching.SetInParent()
    if config.model_transaction_policy.decoupled:
        shown.model_transaction_policy.decoupled = True
    text = render_fields(shown)
    head, separator, rest = text.partition("\n")
    return f"{head}{separator}max_batch_size: {config.max_batch_size}\n{rest}"


def render_fields(config: ModelConfig) -> str:
    """Renders every field that is set."""
    names = [field.name for field, _ in config.ListFields()]
    known = [name for name in ORDER if name in names]
    return "".join(
        render_field(config, name)
        for name in [*known, *(name for name in names if name not in ORDER)]
    )


def render_field(config: ModelConfig, name: str) -> str:
    """Returns whole lines; empty if the field is not set."""
    field = config.DESCRIPTOR.fields_by_name[name]
    value = getattr(config, name)
    if field.is_repeated:
        if not value:
            return ""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return "".join(
                f"{name} {{ key: {_quote(key)} value: {_message(value[key])} }}\n"
                for key in sorted(value)
            )
        if name in ("input", "output"):
            rows = ",\n".join(f"  {_tensor(tensor)}" for tensor in value)
            return f"{name} [\n{rows}\n]\n"
    elif not _is_set(config, field):
        return ""
    return f"{_field(field, value)}\n"


def _is_set(config: ModelConfig, field: Any) -> bool:
    if field.message_type is not None:
        return config.HasField(field.name)
    return bool(getattr(config, field.name) != field.default_value)


def edit_text(text: str, old: ModelConfig, new: ModelConfig) -> str:
    """Returns the text of `old` with the values of `new`. `old` is what the text says, without
    defaults."""
    changed = [
        field.name
        for field in ModelConfig.DESCRIPTOR.fields
        if _only(old, field.name) != _only(new, field.name)
    ]
    spans = _spans(text)
    edits: list[tuple[int, int, str]] = []
    appended = ""
    for name in sorted(changed, key=lambda name: ORDER.index(name) if name in ORDER else 99):
        rendered = render_field(new, name)
        places = [(start, end) for field, start, end in spans if field == name]
        if not places:
            appended += rendered
        for index, (start, end) in enumerate(places):
            one_line = re.sub(r"\n *", " ", rendered.strip())
            is_short = "\n" not in text[start:end] and len(one_line) <= MAX_COLUMNS
            replacement = one_line if is_short else rendered.rstrip("\n")
            edits.append((start, end, replacement if index == 0 else ""))
    for start, end, replacement in sorted(edits, reverse=True):
        text = _replace(text, start, end, replacement)
    if appended and text and not text.endswith("\n"):
        text += "\n"
    return text + appended


def unified_diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def _only(config: ModelConfig, name: str) -> ModelConfig:
    """A config with only this field."""
    result = ModelConfig()
    result.CopyFrom(config)
    for field in ModelConfig.DESCRIPTOR.fields:
        if field.name != name:
            result.ClearField(field.name)
    return result


def _spans(text: str) -> list[tuple[str, int, int]]:
    """Returns (field, start, end) for every field at the top of the text, which must be valid."""
    spans: list[tuple[str, int, int]] = []
    depth, previous, end = 0, "", 0
    for token in tokens(text):
        if token.kind is Kind.END:
            break
        if depth == 0 and token.kind is Kind.NAME and previous not in (":", "-"):
            spans.append((token.text, token.offset, token.offset))
        if token.kind is Kind.SYMBOL:
            depth += (token.text in "[{<") - (token.text in "]}>")
        end = token.offset + len(token.text)
        previous = token.text if token.kind is Kind.SYMBOL else ""
        if spans:
            name, start, _ = spans[-1]
            spans[-1] = (name, start, end)
    return spans


def _replace(text: str, start: int, end: int, replacement: str) -> str:
    """A line that is empty without the field goes with it."""
    if not replacement:
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end + 1
        if not (text[line_start:start] + text[end:line_end]).strip():
            start, end = line_start, line_end
    return text[:start] + replacement + text[end:]


def _tensor(tensor: Any) -> str:
    kinds = {kind.config_number: kind.config_name for kind in DATATYPES.values()}
    parts = [f'name: "{tensor.name}"', f"data_type: {kinds.get(tensor.data_type, 'TYPE_INVALID')}"]
    parts += [f"dims: {_list(map(str, tensor.dims))}"]
    parts += [
        _field(field, value)
        for field, value in tensor.ListFields()
        if field.name not in ("name", "data_type", "dims")
    ]
    return "{ " + " ".join(parts) + " }"


def _message(message: Any) -> str:
    parts = [_field(field, value) for field, value in message.ListFields()]
    return "{ " + " ".join(parts) + " }" if parts else "{ }"


def _field(field: Any, value: Any) -> str:
    name = field.name
    if field.is_repeated:
        if field.message_type is None:
            return f"{name}: {_list(_scalar(field, item) for item in value)}"
        if field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            return " ".join(
                f"{name} {{ key: {_quote(str(key))} {_field(entry, value[key])} }}"
                for key in sorted(value)
            )
        return f"{name} [ {', '.join(map(_message, value))} ]"
    if field.message_type is not None:
        return f"{name} {_message(value)}"
    return f"{name}: {_scalar(field, value)}"


def _scalar(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quote(value) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(items: Iterator[str]) -> str:
    text = ", ".join(items)
    return f"[ {text} ]" if text else "[ ]"
