"""Parses protobuf text, which is the format of config.pbtxt, into a message and the position of
each field.

In:  the text and the message type. Out: a ParsedMessage, or InvalidConfigError with every unknown
     field and wrong value, and the first syntax error, each with its line.
Rules: the parser accepts and refuses the same texts as protobuf's own parser (tests compare the
       two). It knows no field by name; everything comes from the descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from naiad.repository.config.pbtxt_message import (
    expected_identifier,
    expected_scalar,
    expected_symbol,
    refused_scalar,
    unknown_field,
)
from naiad.repository.config.pbtxt_scalar import WrongValueError, describe_type, read_scalar
from naiad.repository.config.pbtxt_token import Kind, TextSyntaxError, Token, tokens
from naiad.repository.config.problem import MAX_PROBLEMS, InvalidConfigError, Problem
from naiad.repository.config.source_map import SourceMap, entry_path
from naiad.repository.config.suggestion import unknown_field_fix

M = TypeVar("M", bound=Message)

_CLOSING = {"{": "}", "<": ">", "[": "]"}
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class ParsedMessage(Generic[M]):
    message: M
    lines: SourceMap
    notes: list[Problem] = field(default_factory=list)
    """Warnings: the text is valid, but probably not what was meant, such as a map key given
    twice."""


def parse_text(text: str, message_type: type[M], file_name: str) -> ParsedMessage[M]:
    """`file_name` is only used in problems. Bytes that are not UTF-8 are passed in as surrogates
    (errors="surrogateescape")."""
    message = message_type()
    lines = SourceMap(file_name, text)
    parser = _Parser(tokens(text), lines)
    try:
        parser.start()
        parser.fill(message, "", None)
    except TextSyntaxError as fault:
        parser.problem(
            fault.code,
            fault.message,
            fault.offset,
            found=fault.found,
            expected=fault.expected,
            fix=fault.fix,
            protobuf=fault.protobuf,
        )
    if parser.problems:
        raise InvalidConfigError(parser.problems)
    return ParsedMessage(message, lines, parser.notes)


class _Parser:
    """A recursive-descent parser. Wrong values are reported and skipped; a TextSyntaxError ends the
    parsing."""

    def __init__(self, stream: Iterator[Token], lines: SourceMap) -> None:
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        self._stream = stream
        self._lines = lines
        self._offsets = lines.offsets
        self._token = Token(Kind.END, "", 0)
        self._depth = 0

    def start(self) -> None:
        self._token = next(self._stream)

    def problem(
        self,
        code: str,
        detail: str,
        offset: int,
        *,
        path: str = "",
        found: str = "",
        expected: str = "",
        fix: str = "",
        protobuf: str = "",
    ) -> None:
        self.problems.append(
            self._make_problem(
                code,
                detail,
                offset,
                path=path,
                found=found,
                expected=expected,
                fix=fix,
                protobuf=protobuf,
            )
        )
        if len(self.problems) == MAX_PROBLEMS:
            raise InvalidConfigError(self.problems)

    def _make_problem(
        self,
        code: str,
        detail: str,
        offset: int,
        *,
        path: str = "",
        found: str = "",
        expected: str = "",
        fix: str = "",
        protobuf: str = "",
    ) -> Problem:
        position = self._lines.position_of_offset(offset)
        return Problem(
            code=code,
            # The first half is Triton's message. Triton leaves the detail to libprotobuf's log.
            message=f"failed to read text proto from {self._lines.file_name}: {detail}",
            brief=detail,
            path=path,
            file=self._lines.file_name,
            position=position,
            source=self._lines.line(position),
            found=found,
            expected=expected,
            fix=fix,
            protobuf=protobuf,
        )

    def fill(self, message: Message, path: str, opening: Token | None) -> None:
        """Reads fields into `message`, up to and including the bracket that closes `opening`, or to
        the end of the text if `opening` is None."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TextSyntaxError(
                "too-deep", f"more than {_MAX_DEPTH} messages inside each other", self._token.offset
            )
        while not self._at_close(opening):
            self._read_field(message, path, opening)
            if not self._accept(","):
                self._accept(";")
        self._depth -= 1

    def _at_close(self, opening: Token | None) -> bool:
        if opening is None:
            return self._token.kind is Kind.END
        closing = _CLOSING[opening.text]
        if self._token.kind is Kind.END:
            raise TextSyntaxError(
                "not-closed",
                "the message that starts here is not closed",
                opening.offset,
                found="the end of the file",
                expected=f"'{closing}'",
                fix=f"add '{closing}'",
                protobuf=expected_identifier(self._token),
            )
        return self._accept(closing)

    def _read_field(self, message: Message, path: str, opening: Token | None) -> None:
        name = self._token
        if name.kind is not Kind.NAME:
            raise self._expected_name(name, opening)
        self._advance()
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        field = descriptor.fields_by_name.get(name.text)
        if field is None:
            self._unknown_field(descriptor, name, path)
            return
        field_path = f"{path}.{name.text}" if path else name.text
        if self._is_given_twice(message, field, name, field_path):
            self._skip_value()
            return
        if field.message_type is None:
            self._expect(
                ":", f"'{name.text}' needs a ':' before its value", fix=f"write {name.text}: ..."
            )
        else:
            self._accept(":")
        self._offsets.setdefault(field_path, name.offset)
        if self._token.text != "[" or self._token.kind is not Kind.SYMBOL:
            self._read_element(message, field, field_path)
        elif field.is_repeated:
            self._read_list(message, field, field_path)
        else:
            fix = "leave out the brackets"
            detail = f"'{name.text}' takes one value, not a list"
            self.problem(
                "not-a-list",
                detail,
                self._token.offset,
                path=field_path,
                found="a list",
                expected=describe_type(field),
                fix=fix,
                protobuf=expected_scalar(field, self._token, is_negative=False),
            )
            self._skip_value()

    def _read_list(self, message: Message, field: FieldDescriptor, path: str) -> None:
        self._advance()
        if self._accept("]"):
            return
        comma = self._token
        while True:
            if self._token.text == "]" and self._token.kind is Kind.SYMBOL:
                raise TextSyntaxError(
                    "trailing-comma",
                    f"the list of '{field.name}' ends with a ','",
                    comma.offset,
                    found="',' before ']'",
                    expected=describe_type(field),
                    fix="remove the ','",
                )
            self._read_element(message, field, path)
            if self._accept("]"):
                return
            comma = self._token
            self._expect(
                ",",
                f"the elements of '{field.name}' must be separated by ','",
                fix="put a ',' between two elements, or a ']' at the end",
            )

    def _read_element(self, message: Message, field: FieldDescriptor, path: str) -> None:
        if field.message_type is not None:
            self._read_message(message, field, path)
            return
        start = self._token.offset
        value = self._read_scalar(field, path)
        if value is None:
            return
        if field.is_repeated:
            elements = getattr(message, field.name)
            self._offsets[f"{path}[{len(elements)}]"] = start
            elements.append(value)
        else:
            setattr(message, field.name, value)

    def _read_scalar(self, field: FieldDescriptor, path: str) -> Any:
        """None if the value was refused. It has been skipped then."""
        start = self._token
        is_negative = self._accept("-")
        literal = [self._token]
        if self._token.kind in (Kind.SYMBOL, Kind.END):
            raise TextSyntaxError(
                "no-value",
                f"'{field.name}' has no value",
                self._token.offset,
                found=str(self._token),
                expected=describe_type(field),
                protobuf=expected_scalar(field, self._token, is_negative=is_negative),
            )
        self._advance()
        while literal[0].kind is Kind.STRING and self._token.kind is Kind.STRING:
            literal.append(self._token)
            self._advance()
        try:
            return read_scalar(field, is_negative, literal)
        except WrongValueError as wrong:
            detail = f"'{field.name}' cannot be {wrong.found}"
            self.problem(
                wrong.code,
                detail,
                start.offset,
                path=path,
                found=wrong.found,
                expected=wrong.expected,
                fix=wrong.fix,
                protobuf=refused_scalar(field, literal[0], wrong.code, is_negative=is_negative),
            )
            return None

    def _read_message(self, message: Message, field: FieldDescriptor, path: str) -> None:
        opening = self._token
        if opening.kind is not Kind.SYMBOL or opening.text not in "{<":
            self._not_a_message(field, path)
            return
        self._advance()
        assert field.message_type is not None
        if field.message_type.GetOptions().map_entry:
            self._read_map_entry(message, field, path, opening)
        elif field.is_repeated:
            elements = getattr(message, field.name)
            element_path = f"{path}[{len(elements)}]"
            self._offsets[element_path] = opening.offset
            self.fill(elements.add(), element_path, opening)
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            self.fill(child, path, opening)

    def _read_map_entry(
        self, message: Message, field: FieldDescriptor, path: str, opening: Token
    ) -> None:
        assert field.message_type is not None
        entry: Any = GetMessageClass(field.message_type)()
        around, self._offsets = self._offsets, {}
        self.fill(entry, "", opening)
        within, self._offsets = self._offsets, around
        own_path = entry_path(path, entry.key)
        if own_path in around:
            first = self._lines.position_of_offset(around[own_path]).line
            self.notes.append(
                self._make_problem(
                    "duplicate-key",
                    f"'{field.name}' has the key {entry.key!r} twice; the last one counts",
                    opening.offset,
                    path=own_path,
                    found=f"{entry.key!r}, also on line {first}",
                    expected="each key once",
                    fix="remove one of the two entries",
                )
            )
        around[own_path] = opening.offset
        for inner, offset in within.items():
            if inner.startswith("value."):
                around[own_path + inner.removeprefix("value")] = offset
        entries = getattr(message, field.name)
        if field.message_type.fields_by_name["value"].message_type is not None:
            entries[entry.key].CopyFrom(entry.value)
        else:
            entries[entry.key] = entry.value

    def _is_given_twice(
        self, message: Message, field: FieldDescriptor, name: Token, path: str
    ) -> bool:
        if field.is_repeated:
            return False
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof else None
        if oneof and other and other != field.name:
            detail = f"'{field.name}' and '{other}' cannot be given together"
            choices = " or ".join(choice.name for choice in oneof.fields)
            first = path.removesuffix(field.name) + other
            fix = f"remove one of the two ('{other}' is on line {self._line_of(first)})"
            self.problem(
                "oneof",
                detail,
                name.offset,
                path=path,
                found=f"{other} and {field.name}",
                expected=f"one of {choices}",
                fix=fix,
                protobuf=f'Field "{field.name}" is specified along with field "{other}", another '
                f'member of oneof "{oneof.name}".',
            )
            return True
        # As in protobuf, a field without presence that has its default value counts as not given.
        is_set = (
            message.HasField(field.name)
            if field.has_presence
            else bool(getattr(message, field.name))
        )
        if is_set:
            detail = f"'{field.name}' is given twice"
            fix = f"remove one of the two (the first is on line {self._line_of(path)})"
            self.problem(
                "given-twice",
                detail,
                name.offset,
                path=path,
                found="a second value",
                expected="one value",
                fix=fix,
                protobuf=f'Non-repeated field "{field.name}" is specified multiple times.',
            )
        return is_set

    def _line_of(self, path: str) -> int:
        return self._lines.position_of_offset(self._offsets.get(path, 0)).line

    def _unknown_field(self, around: Descriptor, name: Token, path: str) -> None:
        detail = f"{around.name} has no field named '{name.text}'"
        fix = unknown_field_fix(name.text, around)
        expected = (
            f"a field of {around.name}"
            if fix
            else "one of " + ", ".join(f.name for f in around.fields)
        )
        self.problem(
            "unknown-field",
            detail,
            name.offset,
            path=path,
            found=name.text,
            expected=expected,
            fix=fix,
            protobuf=unknown_field(around, name),
        )
        self._skip_value()

    def _not_a_message(self, field: FieldDescriptor, path: str) -> None:
        if self._token.kind is Kind.END or (
            self._token.kind is Kind.SYMBOL and self._token.text != "-"
        ):
            raise TextSyntaxError(
                "no-value",
                f"'{field.name}' has no value",
                self._token.offset,
                found=str(self._token),
                expected="'{'",
                protobuf=expected_symbol("{", self._token),
            )
        detail = f"'{field.name}' is a message, not a single value"
        example = (
            f"{field.name} {{ }}"
            if self._token.text in ("true", "True", "1")
            else f"{field.name} {{ ... }}"
        )
        self.problem(
            "not-a-value",
            detail,
            self._token.offset,
            path=path,
            found=str(self._token),
            expected="a message in { }",
            fix=f"write {example}",
            protobuf=expected_symbol("{", self._token),
        )
        self._skip_scalar()

    def _expected_name(self, token: Token, opening: Token | None) -> TextSyntaxError:
        detail = f"{token} is not a field name"
        expected = "a field name"
        fix = ""
        if opening and token.text in ("}", "]", ">"):
            line = self._lines.position_of_offset(opening.offset).line
            closing = _CLOSING[opening.text]
            detail = f"the message that starts on line {line} is not closed before this {token}"
            expected, fix = f"'{closing}'", f"put a '{closing}' before the '{token.text}'"
        elif token.text in ("}", "]", ">"):
            fix = f"remove this '{token.text}', or add the bracket that opens it"
        elif token.text in (",", ";"):
            fix = f"remove this '{token.text}'"
        elif token.text == "{" and not opening:
            fix = (
                "a configuration is protobuf text, not JSON: "
                "remove the braces around it and the quotes around names"
            )
        elif token.kind is Kind.STRING:
            fix = "field names are written without quotes, as in name: value"
        return TextSyntaxError(
            "no-name",
            detail,
            token.offset,
            found=str(token),
            expected=expected,
            fix=fix,
            protobuf=expected_identifier(token),
        )

    def _skip_value(self) -> None:
        """Skips the value of a field that was refused. The value may have any type."""
        self._accept(":")
        if self._token.kind is not Kind.SYMBOL or self._token.text == "-":
            self._skip_scalar()
        elif self._token.text in _CLOSING:
            self._skip_bracketed()
        else:
            raise TextSyntaxError(
                "no-value",
                "a field has no value",
                self._token.offset,
                found=str(self._token),
                expected="a value",
            )

    def _skip_scalar(self) -> None:
        self._accept("-")
        is_string = self._token.kind is Kind.STRING
        if self._token.kind in (Kind.END, Kind.SYMBOL):
            raise TextSyntaxError(
                "no-value",
                "a field has no value",
                self._token.offset,
                found=str(self._token),
                expected="a value",
            )
        self._advance()
        while is_string and self._token.kind is Kind.STRING:
            self._advance()

    def _skip_bracketed(self) -> None:
        closings: list[str] = []
        while True:
            if self._token.kind is Kind.END:
                raise TextSyntaxError(
                    "not-closed",
                    "a message is not closed",
                    self._token.offset,
                    found=str(self._token),
                    expected=f"'{closings[-1]}'",
                )
            if self._token.kind is Kind.SYMBOL and self._token.text in _CLOSING:
                closings.append(_CLOSING[self._token.text])
            elif self._token.kind is Kind.SYMBOL and self._token.text in "}]>":
                self._expect(closings[-1], "brackets do not match", advance=False)
                closings.pop()
            self._advance()
            if not closings:
                return

    def _accept(self, symbol: str) -> bool:
        if self._token.kind is Kind.SYMBOL and self._token.text == symbol:
            self._token = next(self._stream)
            return True
        return False

    def _expect(self, symbol: str, detail: str, *, fix: str = "", advance: bool = True) -> None:
        if self._token.kind is not Kind.SYMBOL or self._token.text != symbol:
            raise TextSyntaxError(
                "missing-symbol",
                detail,
                self._token.offset,
                found=str(self._token),
                expected=f"'{symbol}'",
                fix=fix,
                protobuf=expected_symbol(symbol, self._token),
            )
        if advance:
            self._advance()

    def _advance(self) -> None:
        if self._token.kind is not Kind.END:
            self._token = next(self._stream)
