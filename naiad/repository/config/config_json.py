"""ModelConfig -> JSON as Triton prints it, for `GET /v2/models/M/config` and for a Python model's
`args["model_config"]`.

Fields have their original names, in the order of their declaration. Unset messages are left out,
defaults are printed, 64-bit integers are numbers, and enums are names.
Rule: pure. Nothing is cached here; a loaded model keeps its bytes. config_override reads JSON.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from naiad.pb.model_config_pb2 import ModelConfig

_Convert = Callable[[Any], Any]
# How one field is printed: its name, whether it is left out if unset, and how its value is
# converted.
_FieldPlan = tuple[str, bool, _Convert | None]


def config_to_json(config: ModelConfig) -> bytes:
    return msgspec.json.encode(config_to_dict(config))


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    return _to_dict(config)


def _to_dict(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, only_if_set, convert in _plan(cast(Descriptor, message.DESCRIPTOR)):
        if only_if_set and not message.HasField(name):
            continue
        value = getattr(message, name)
        result[name] = convert(value) if convert else value
    return result


@cache
def _plan(descriptor: Descriptor) -> list[_FieldPlan]:
    # Triton prints the scalars of a oneof (zero_data, data_file) after all other fields, but the
    # messages of a oneof in their place.
    fields = sorted(
        descriptor.fields,
        key=lambda field: field.containing_oneof is not None and field.message_type is None,
    )
    return [_plan_field(field) for field in fields]


def _plan_field(field: FieldDescriptor) -> _FieldPlan:
    if (
        field.is_repeated
        and field.message_type is not None
        and field.message_type.GetOptions().map_entry
    ):
        element = _plan_value(field.message_type.fields_by_name["value"])
        return (
            field.name,
            False,
            lambda entries: {str(key): _through(element, entries[key]) for key in sorted(entries)},
        )
    element = _plan_value(field)
    if field.is_repeated:
        return field.name, False, lambda elements: [_through(element, value) for value in elements]
    return field.name, field.has_presence, element


def _plan_value(field: FieldDescriptor) -> _Convert | None:
    if field.message_type is not None:
        return _to_dict
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return _float32
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return _double
    return None


def _through(convert: _Convert | None, value: Any) -> Any:
    return convert(value) if convert else value


def _float32(value: float) -> float | int | str:
    return _short(value, (6, 9), lambda short: struct.pack("<f", short) == struct.pack("<f", value))


def _double(value: float) -> float | int | str:
    return _short(value, (15, 17), lambda short: short == value)


def _short(
    value: float, digits: tuple[int, int], is_same: Callable[[float], bool]
) -> float | int | str:
    """Formats as protobuf does: with as few digits as suffice, without a fraction for whole
    numbers, and as a string where JSON has no such number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = f"{value:.{digits[0]}g}"
    if not is_same(float(text)):
        text = f"{value:.{digits[1]}g}"
    return float(text) if "." in text or "e" in text else int(text)
