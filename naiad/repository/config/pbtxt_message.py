"""The messages of protobuf's own C++ parser, which Triton has in its log for a config.pbtxt that
does not parse. Tools look for them there.

In:  the token at which parsing stopped, and the field that it belongs to. Out: the message.
Rule: what users read is in pbtxt.py; these texts are protobuf's to the letter.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from naiad.repository.config.pbtxt_scalar import INTEGER_RANGES
from naiad.repository.config.pbtxt_token import Kind, Token

_OUR_PACKAGE, _TRITONS_PACKAGE = "naiad.", "inference."


def expected_identifier(token: Token) -> str:
    return f"Expected identifier, got: {token.text}"


def expected_symbol(symbol: str, token: Token) -> str:
    return f'Expected "{symbol}", found "{token.text}".'


def unknown_field(around: Descriptor, name: Token) -> str:
    message = _TRITONS_PACKAGE + around.full_name.removeprefix(_OUR_PACKAGE)
    return f'Message type "{message}" has no field named "{name.text}".'


def expected_scalar(field: FieldDescriptor, token: Token, *, is_negative: bool) -> str:
    """The message for a token that cannot begin a value of this field."""
    got = "-" if is_negative and _is_unsigned(field) else token.text
    if field.cpp_type in INTEGER_RANGES:
        return f"Expected integer, got: {got}"
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return f"Expected double, got: {got}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return f"Expected string, got: {got}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return f"Expected integer or identifier, got: {got}"
    return f"Expected identifier, got: {got}"


def refused_scalar(field: FieldDescriptor, token: Token, code: str, *, is_negative: bool) -> str:
    """The message for a value that the field does not accept; `code` is that of the problem."""
    if code == "bad-string":
        return ""  # the tokenizer's own messages are not imitated
    if code == "out-of-range" and not (is_negative and _is_unsigned(field)):
        return f"Integer out of range ({token.text})"
    if token.kind is Kind.NAME and not is_negative:
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return f'Invalid value for boolean field "{field.name}". Value: "{token.text}".'
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return f'Unknown enumeration value of "{token.text}" for field "{field.name}".'
    return expected_scalar(field, token, is_negative=is_negative)


def _is_unsigned(field: FieldDescriptor) -> bool:
    """Fields that do not accept a minus sign."""
    if field.cpp_type in INTEGER_RANGES:
        return INTEGER_RANGES[field.cpp_type][1] == 0
    return field.cpp_type in (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL)
