"""Generates random model configurations, and the many ways to write each of them as protobuf
text."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from naiad.pb.model_config_pb2 import ModelConfig

F = FieldDescriptor
RANGES = {
    F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    F.CPPTYPE_UINT32: (0, 2**32 - 1),
    F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def integer_literal(draw: Any, value: int) -> str:
    style = draw(st.sampled_from(["{}", "{:#x}", "0{:o}"])) if value >= 0 else "{}"
    return style.format(value) if value else "0"


def string_literal(draw: Any, value: str) -> str:
    quote = draw(st.sampled_from("\"'"))
    parts = [value[:2], value[2:]] if draw(st.booleans()) else [value]
    return " ".join(
        quote + "".join(escaped(draw, char, quote) for char in part) + quote for part in parts
    )


def escaped(draw: Any, char: str, quote: str) -> str:
    if char in "\\\n\r\0" or char == quote or ord(char) < 32 or draw(st.integers(0, 9)) == 0:
        if draw(st.booleans()):
            return "".join(f"\\{byte:03o}" for byte in char.encode())
        return "".join(f"\\x{byte:02x}" for byte in char.encode())
    return char


def scalar_literal(draw: Any, field: FieldDescriptor) -> str:
    if field.cpp_type in RANGES:
        low, high = RANGES[field.cpp_type]
        return integer_literal(
            draw,
            draw(
                st.one_of(st.integers(low, high), st.integers(0, 16), st.sampled_from([low, high]))
            ),
        )
    if field.cpp_type in (F.CPPTYPE_FLOAT, F.CPPTYPE_DOUBLE):
        special = st.sampled_from(
            [
                "inf",
                "-inf",
                "infinity",
                "nan",
                "1.5f",
                "2.",
                ".5",
                "1e3",
                "7",
                "0",
                "-0.25E-2",
                "1e400",
            ]
        )
        return str(
            draw(
                st.one_of(
                    special, st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
                )
            )
        )
    if field.cpp_type == F.CPPTYPE_BOOL:
        return str(draw(st.sampled_from(["true", "false", "True", "False", "t", "f", "0", "1"])))
    if field.cpp_type == F.CPPTYPE_ENUM:
        assert field.enum_type is not None
        value = draw(st.sampled_from(list(field.enum_type.values)))
        return str(draw(st.sampled_from([value.name, value.name, str(value.number)])))
    return string_literal(draw, draw(NAMES))


def value_tokens(draw: Any, field: FieldDescriptor, depth: int) -> list[str]:
    if field.message_type is None:
        return [scalar_literal(draw, field)]
    opening, closing = draw(st.sampled_from([("{", "}"), ("{", "}"), ("<", ">")]))
    return [opening, *message_tokens(draw, field.message_type, depth + 1), closing]


def field_tokens(draw: Any, field: FieldDescriptor, depth: int) -> list[str]:
    colon = [":"] if field.message_type is None or draw(st.booleans()) else []
    separator = draw(st.sampled_from([[], [], [","], [";"]]))
    if not field.is_repeated or draw(st.booleans()):
        return [field.name, *colon, *value_tokens(draw, field, depth), *separator]
    elements: list[str] = []
    for index in range(draw(st.integers(0, 3))):
        elements += ([","] if index else []) + value_tokens(draw, field, depth)
    return [field.name, *colon, "[", *elements, "]", *separator]


def message_tokens(draw: Any, descriptor: Descriptor, depth: int = 0) -> list[str]:
    """Generates any fields in any order: repeated fields several times, and sometimes the mistakes
    of users, such as a single field twice or two fields of a oneof."""
    count = draw(st.integers(0, 5 if depth < 2 else 2)) if len(descriptor.fields) else 0
    if not count:
        return []
    fields = draw(
        st.lists(st.sampled_from(list(descriptor.fields)), min_size=count, max_size=count)
    )
    if draw(st.integers(0, 3)):
        fields = list(
            {
                (field.containing_oneof.name if field.containing_oneof else field.name): field
                for field in fields
            }.values()
        )
    return [token for field in fields for token in field_tokens(draw, field, depth)]


@st.composite
def config_tokens(draw: Any) -> list[str]:
    return message_tokens(draw, cast(Descriptor, ModelConfig.DESCRIPTOR))


@st.composite
def config_texts(draw: Any) -> str:
    gaps = st.sampled_from([" ", " ", "\n", "\t", " # a comment } [\n", "\r\n"])
    return "".join(token + draw(gaps) for token in draw(config_tokens()))


@st.composite
def damaged_texts(draw: Any) -> str:
    """Generates texts in which a few tokens are lost, doubled, swapped or replaced."""
    tokens = draw(config_tokens())
    for _ in range(draw(st.integers(1, 3))):
        if not tokens:
            break
        at = draw(st.integers(0, len(tokens) - 1))
        kind = draw(st.sampled_from(["lose", "double", "replace", "insert"]))
        if kind == "lose":
            del tokens[at]
        elif kind == "double":
            tokens.insert(at, tokens[at])
        elif kind == "replace":
            tokens[at] = draw(st.sampled_from(tokens))
        else:
            tokens.insert(
                at,
                draw(
                    st.sampled_from(
                        [
                            "{",
                            "}",
                            "[",
                            "]",
                            "<",
                            ">",
                            ":",
                            ",",
                            ";",
                            "name",
                            "x",
                            "1",
                            '"s"',
                            "-1",
                            "TYPE_FP32",
                        ]
                    )
                ),
            )
    return " ".join(tokens)
