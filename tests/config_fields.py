"""Every field of ModelConfig, and configs that differ in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from naiad.pb.model_config_pb2 import ModelConfig

Path = tuple[str, ...]
"""The names of the fields on the way down."""


def _fields_below(descriptor: Any, place: Path = ()) -> Iterator[Path]:
    for field in descriptor.fields:
        yield (path := (*place, field.name))
        inner = field.message_type
        if inner is not None and _is_map(field):
            inner = inner.fields_by_name["value"].message_type
        if inner is not None:
            yield from _fields_below(inner, path)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


PATHS = list(_fields_below(ModelConfig.DESCRIPTOR))


def decide(message: Message, path: Path, *, changed: bool) -> None:
    """Sets every message on the way to the field, and the field itself if it is to be changed."""
    field: Any = message.DESCRIPTOR.fields_by_name[path[0]]
    value: Any = getattr(message, field.name)
    if len(path) > 1:
        if _is_map(field):
            inner = value[_key(field)]
        elif field.is_repeated:
            inner = value[0] if value else value.add()
        else:
            value.SetInParent()
            inner = value
        decide(inner, path[1:], changed=changed)
    elif changed:
        _change(message, field, value)


def _change(message: Message, field: Any, value: Any) -> None:
    if _is_map(field) and field.message_type.fields_by_name["value"].message_type is not None:
        value[_key(field)].SetInParent()
    elif _is_map(field):
        value[_key(field)] = "x"
    elif field.message_type is not None and field.is_repeated:
        value.add()
    elif field.message_type is not None:
        value.SetInParent()
    elif field.is_repeated:
        value.append(_scalar(field))
    else:
        setattr(message, field.name, _scalar(field))


def _key(field: Any) -> Any:
    key = field.message_type.fields_by_name["key"]
    return "key" if key.cpp_type == key.CPPTYPE_STRING else 7


def _scalar(field: Any) -> Any:
    return "x" if field.cpp_type == field.CPPTYPE_STRING else 1
