"""Reads one scalar of protobuf text as a Python value of its field's type.

In:  the tokens of one value. Out: a value that the message accepts, or a WrongValueError that says
     what was found and what was expected.
Rule: values that protobuf's C++ parser refuses are refused (1.0 for an integer, hexadecimal for a
      float, unknown escapes).
"""

from __future__ import annotations

import re

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from naiad.repository.config.pbtxt_token import Kind, Token
from naiad.repository.config.suggestion import nearest

INTEGER_RANGES: dict[int, tuple[str, int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: ("int64", -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", 0, 2**64 - 1),
}
_BOOLS = {
    "true": True,
    "True": True,
    "t": True,
    "1": True,
    "false": False,
    "False": False,
    "f": False,
    "0": False,
}
_SIMPLE_ESCAPES = {
    "n": 10,
    "r": 13,
    "t": 9,
    "a": 7,
    "b": 8,
    "f": 12,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)

Scalar = bool | int | float | str | bytes


class WrongValueError(Exception):
    def __init__(self, code: str, *, found: str, expected: str, fix: str = "") -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.code = code
        self.found = found
        self.expected = expected
        self.fix = fix


def describe_type(field: FieldDescriptor) -> str:
    """Describes the values that this field accepts."""
    if field.cpp_type in INTEGER_RANGES:
        return f"an integer ({INTEGER_RANGES[field.cpp_type][0]})"
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return "a number"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "a string in quotes"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _choices(_enum(field))
    return "a message in { }"


def read_scalar(field: FieldDescriptor, is_negative: bool, literal: list[Token]) -> Scalar:
    """`literal` is one token, or several adjacent strings."""
    token = literal[0]
    shown = f"{'-' if is_negative else ''}{token.text}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _read_string(field, is_negative, literal, shown)
    if field.cpp_type in INTEGER_RANGES:
        return _read_integer(field, is_negative, token, shown)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return _read_float(is_negative, token, shown)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if is_negative or token.text not in _BOOLS:
            fix = (
                f"write {token.text.strip(chr(34)).lower()} without quotes"
                if token.kind is Kind.STRING
                else ""
            )
            raise WrongValueError("wrong-type", found=shown, expected="true or false", fix=fix)
        return _BOOLS[token.text]
    return _read_enum(_enum(field), is_negative, token, shown)


def _read_string(
    field: FieldDescriptor, is_negative: bool, literal: list[Token], shown: str
) -> str | bytes:
    if is_negative or literal[0].kind is not Kind.STRING:
        raise WrongValueError(
            "wrong-type", found=shown, expected="a string in quotes", fix=f'write "{shown}"'
        )
    value = b"".join(_unescape(token.text[1:-1]) for token in literal)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WrongValueError("bad-string", found=shown[:60], expected="text in UTF-8") from None


def _unescape(text: str) -> bytes:
    parts: list[bytes] = []
    done = 0
    for escape in _ESCAPE.finditer(text):
        parts.append(_utf8(text[done : escape.start()]))
        done = escape.end()
        octal, hexadecimal, short, long, simple = escape.groups()
        if octal:
            parts.append(bytes([int(octal, 8) & 0xFF]))
        elif hexadecimal:
            parts.append(bytes([int(hexadecimal, 16)]))
        elif short or long:
            parts.append(_code_point(int(short or long, 16), escape.group()))
        elif simple in _SIMPLE_ESCAPES:
            parts.append(bytes([_SIMPLE_ESCAPES[simple]]))
        else:
            fix = r"write \\ for a backslash"
            raise WrongValueError(
                "bad-string",
                found=f"the escape \\{simple}",
                expected=r"one of \n \r \t \" \' \\ \ooo \xhh \uhhhh",
                fix=fix,
            )
    parts.append(_utf8(text[done:]))
    return b"".join(parts)


def _utf8(text: str) -> bytes:
    # Bytes that are not UTF-8 arrive as lone surrogates. They become the original bytes again, so
    # that decoding the string fails.
    return text.encode("utf-8", "surrogateescape")


def _code_point(number: int, shown: str) -> bytes:
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise WrongValueError(
            "bad-string", found=f"the escape {shown}", expected="a Unicode character"
        )
    return chr(number).encode()


def _read_integer(field: FieldDescriptor, is_negative: bool, token: Token, shown: str) -> int:
    name, low, high = INTEGER_RANGES[field.cpp_type]
    if token.kind is not Kind.INTEGER:
        fix = "leave out the quotes" if token.kind is Kind.STRING else ""
        raise WrongValueError("wrong-type", found=shown, expected=f"an integer ({name})", fix=fix)
    value = _integer(token.text, shown)
    value = -value if is_negative else value
    if not low <= value <= high or (is_negative and low == 0):
        raise WrongValueError(
            "out-of-range", found=shown, expected=f"an integer from {low} to {high}"
        )
    return value


def _integer(text: str, shown: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if text[0] == "0" and len(text) > 1:
        if not set(text) <= set("01234567"):
            raise WrongValueError(
                "wrong-type",
                found=shown,
                expected="octal digits after a leading 0",
                fix=f"write {text.lstrip('0')}",
            )
        return int(text, 8)
    if len(text) > 40:
        raise WrongValueError(
            "out-of-range", found=f"{shown[:20]}... ({len(text)} digits)", expected="an integer"
        )
    return int(text)


def _read_float(is_negative: bool, token: Token, shown: str) -> float:
    text = token.text.lower()
    if token.kind is Kind.NAME and text in ("inf", "infinity", "nan", "inff", "infinityf", "nanf"):
        value = float(text.removesuffix("f") if text not in ("inf",) else "inf")
    elif token.kind is Kind.FLOAT or (
        token.kind is Kind.INTEGER and (text == "0" or text[0] != "0")
    ):
        value = float(text.removesuffix("f"))
    else:
        fix = "leave out the quotes" if token.kind is Kind.STRING else ""
        raise WrongValueError("wrong-type", found=shown, expected="a decimal number", fix=fix)
    return -value if is_negative else value


def _read_enum(enum: EnumDescriptor, is_negative: bool, token: Token, shown: str) -> int:
    if token.kind is Kind.INTEGER:
        number = _integer(token.text, shown) * (-1 if is_negative else 1)
        if not -(2**31) <= number <= 2**31 - 1:
            raise WrongValueError("out-of-range", found=shown, expected=f"a value of {enum.name}")
        return number
    value = (
        enum.values_by_name.get(token.text) if token.kind is Kind.NAME and not is_negative else None
    )
    if value is None:
        raise WrongValueError(
            "unknown-value", found=shown, expected=_choices(enum), fix=_enum_fix(enum, token)
        )
    return value.number


def _enum_fix(enum: EnumDescriptor, token: Token) -> str:
    word = token.text.strip("\"'")
    # A list, because protobuf's own map fails for strings that are not UTF-8.
    names = list(enum.values_by_name)
    if token.kind is Kind.STRING and word in names:
        return f"write {word} without quotes"
    prefix = names[0].split("_")[0]
    near = nearest(word, names) or nearest(f"{prefix}_{word}".upper(), names)
    return f"did you mean {near}?" if near else ""


def _choices(enum: EnumDescriptor) -> str:
    return "one of " + ", ".join(name for name in enum.values_by_name if name != "TYPE_INVALID")


def _enum(field: FieldDescriptor) -> EnumDescriptor:
    assert field.enum_type is not None
    return field.enum_type
