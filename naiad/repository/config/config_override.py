"""JSON -> ModelConfig: the configuration in a load request, and what a Python model's
auto_complete_config returns.

The rules are those of protobuf's JSON: names may be original or camelCase, numbers may be strings,
enums are numbers or names in any case, and null means unset.
Rule: every problem is reported with the path of its field. An override with a problem is not used.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt_scalar import INTEGER_RANGES, WrongValueError, describe_type
from naiad.repository.config.problem import MAX_PROBLEMS, InvalidConfigError, Problem
from naiad.repository.config.source_map import entry_path
from naiad.repository.config.suggestion import nearest, unknown_field_fix

_PREFIX = "Invalid config override: "


def parse_override(text: str | bytes) -> ModelConfig:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidConfigError(
            [Problem(code="bad-json", message=f"{_PREFIX}not valid JSON: {error}")]
        ) from error
    return parse_override_dict(document)


def parse_override_dict(document: Any) -> ModelConfig:
    reader = _Reader()
    config = ModelConfig()
    reader.fill(config, document, "")
    if reader.problems:
        raise InvalidConfigError(reader.problems)
    return config


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def fill(self, message: Message, document: Any, path: str) -> None:
        if not isinstance(document, dict):
            self._wrong("wrong-type", path, found=_shown(document), expected="a JSON object")
            return
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        for name, value in document.items():
            field = descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(
                name
            )
            if field is None:
                names = ", ".join(f.name for f in descriptor.fields)
                fix = unknown_field_fix(name, descriptor)
                self._wrong(
                    "unknown-field",
                    _join(path, name),
                    found=name,
                    expected=f"one of {names}",
                    fix=fix,
                )
            elif value is not None and not self._is_second_choice(message, field, path):
                self._read_field(message, field, value, _join(path, field.name))

    def _is_second_choice(self, message: Message, field: FieldDescriptor, path: str) -> bool:
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof else None
        if not oneof or not other or other == field.name:
            return False
        expected = "one of " + ", ".join(choice.name for choice in oneof.fields)
        self._wrong(
            "oneof",
            _join(path, field.name),
            found=f"{other} and {field.name}",
            expected=expected,
            fix="remove one of the two",
        )
        return True

    def _read_field(self, message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._read_map(message, field, value, path)
        elif field.is_repeated:
            self._read_list(message, field, value, path)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            self.fill(child, value, path)
        else:
            scalar = self._read_scalar(field, value, path)
            if scalar is not None:
                setattr(message, field.name, scalar)

    def _read_list(self, message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
        if not isinstance(value, list | tuple):
            self._wrong(
                "wrong-type",
                path,
                found=_shown(value),
                expected="a JSON array",
                fix=f"write [{_shown(value)}]",
            )
            return
        elements = getattr(message, field.name)
        for index, element in enumerate(value):
            if field.message_type is not None:
                self.fill(elements.add(), element, f"{path}[{index}]")
            else:
                scalar = self._read_scalar(field, element, f"{path}[{index}]")
                if scalar is not None:
                    elements.append(scalar)

    def _read_map(self, message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            self._wrong("wrong-type", path, found=_shown(value), expected="a JSON object")
            return
        assert field.message_type is not None
        key_field, value_field = (
            field.message_type.fields_by_name[name] for name in ("key", "value")
        )
        entries = getattr(message, field.name)
        for name, element in value.items():
            key = self._read_scalar(key_field, name, entry_path(path, name))
            if key is None:
                continue
            if value_field.message_type is not None:
                self.fill(entries[key], element, entry_path(path, name))
            else:
                scalar = self._read_scalar(value_field, element, entry_path(path, name))
                if scalar is not None:
                    entries[key] = scalar

    def _read_scalar(self, field: FieldDescriptor, value: Any, path: str) -> Any:
        try:
            return _scalar(field, value)
        except WrongValueError as wrong:
            self._wrong(wrong.code, path, found=wrong.found, expected=wrong.expected, fix=wrong.fix)
            return None

    def _wrong(self, code: str, path: str, *, found: str, expected: str, fix: str = "") -> None:
        where = f"{path}: " if path else ""
        message = f"{_PREFIX}{where}found {found}, expected {expected}"
        self.problems.append(
            Problem(code=code, message=message, path=path, found=found, expected=expected, fix=fix)
        )
        if len(self.problems) == MAX_PROBLEMS:
            raise InvalidConfigError(self.problems)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    wrong = WrongValueError("wrong-type", found=_shown(value), expected=describe_type(field))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _base64(value, wrong)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if not isinstance(value, str):
            raise wrong
        return value
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise wrong
        return value
    if isinstance(value, bool):
        raise wrong
    if field.enum_type is not None:
        return _enum(field, value)
    number = _number(value, wrong)
    if field.cpp_type not in INTEGER_RANGES:
        return number
    if not float(number).is_integer():
        raise wrong
    _, low, high = INTEGER_RANGES[field.cpp_type]
    if not low <= number <= high:
        raise WrongValueError(
            "out-of-range", found=_shown(value), expected=f"an integer from {low} to {high}"
        )
    return int(number)


def _number(value: Any, wrong: WrongValueError) -> int | float:
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or not value or value != value.strip():
        raise wrong
    special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if value in special:
        return special[value]
    if len(value) > 40 or "_" in value or not value.isascii():
        raise wrong
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise wrong from None


def _enum(field: FieldDescriptor, value: Any) -> int:
    assert field.enum_type is not None
    names = field.enum_type.values_by_name
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return value
    by_upper = {name.upper(): number.number for name, number in names.items()}
    if isinstance(value, str) and value.upper() in by_upper:
        return by_upper[value.upper()]
    near = nearest(value, names) if isinstance(value, str) else ""
    raise WrongValueError(
        "unknown-value",
        found=_shown(value),
        expected="one of " + ", ".join(names),
        fix=f"did you mean {near}?" if near else "",
    )


def _base64(value: Any, wrong: WrongValueError) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise wrong from None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = (
        msgspec.json.encode(value).decode()
        if isinstance(value, dict | list | str | int | float | None)
        else str(type(value))
    )
    return text if len(text) <= 60 else text[:57] + "..."
