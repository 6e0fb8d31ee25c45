"""What an option is: declared once as `name: Annotated[type, GROUP("help", ...)] = default` in
naiad.settings.settings.

From that one line come the flag, the environment variable, its place in the help, its row in
docs/settings.md and the typed field.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.settings.value import boolean, integer, real, string


class Flag(msgspec.Struct, frozen=True):
    """What a declaration says beyond name, type and default."""

    group: str
    help: str
    parse: Callable[[str], Any] | None
    metavar: str
    aliases: tuple[str, ...]
    is_switch: bool
    """Takes no value: being there means true."""
    is_extension: bool
    """Ours, unknown to tritonserver."""
    default_words: str
    """For a default that depends on something else."""


class Group(msgspec.Struct, frozen=True):
    title: str

    def __call__(
        self,
        help: str,
        *,
        parse: Callable[[str], Any] | None = None,
        metavar: str = "",
        aliases: tuple[str, ...] = (),
        is_switch: bool = False,
        is_extension: bool = False,
        default_words: str = "",
    ) -> Flag:
        return Flag(
            self.title, help, parse, metavar, aliases, is_switch, is_extension, default_words
        )


class Option(msgspec.Struct, frozen=True):
    name: str
    """As on the command line, without the dashes."""
    field: str
    flag: Flag
    parse: Callable[[str], Any]
    """Of one occurrence."""
    is_repeated: bool
    default: Any
    metavar: str

    @property
    def variable(self) -> str:
        return f"NAIAD_{self.field.upper()}"

    @property
    def default_words(self) -> str:
        if self.flag.default_words:
            return self.flag.default_words
        if isinstance(self.default, bool):
            return "" if self.flag.is_switch else str(self.default).lower()
        return (
            ""
            if self.default in (None, (), "")
            else f"{self.default:.16g}"
            if isinstance(self.default, float)
            else str(self.default)
        )


class OptionError(Exception):
    """A wrong command line, environment variable or line of the config file; the message is for the
    person who wrote it."""


PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (boolean, "BOOL"),
    int: (integer, "INT"),
    float: (real, "NUMBER"),
    str: (string, "TEXT"),
}


def declared_options(struct: type[msgspec.Struct]) -> dict[str, Option]:
    """In order of declaration, by name."""
    hints = typing.get_type_hints(struct, include_extras=True)
    options: dict[str, Option] = {}
    for field, default in zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True):
        match typing.get_args(hints[field]):
            case [declared, Flag() as flag]:
                option = _option(field, declared, default, flag)
            case _:
                raise TypeError(f"setting '{field}' is not declared as Annotated[type, GROUP(...)]")
        options[option.name] = option
    return options


def _option(field: str, declared: Any, default: Any, flag: Flag) -> Option:
    is_repeated = typing.get_origin(declared) is tuple
    element = typing.get_args(declared)[0] if is_repeated else declared
    parse, metavar = PARSERS.get(element, (flag.parse, "TEXT"))
    parse = flag.parse or parse
    if parse is None:
        raise TypeError(f"setting '{field}' of type {declared} needs a parse function")
    metavar = "" if flag.is_switch else flag.metavar or metavar
    return Option(field.replace("_", "-"), field, flag, parse, is_repeated, default, metavar)
