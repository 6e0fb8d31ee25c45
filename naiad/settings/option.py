"""Defines what an option is.

An option is declared once, as a struct field `name: Annotated[type, GROUP("help", ...)] = default`.
The flag, the environment variable, the entry in --help, the row in the documentation and the typed
field all derive from that declaration. `declared_options` reads the declarations of a struct.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.settings.value import boolean, integer, real, string


class Flag(msgspec.Struct, frozen=True):
    """The part of a declaration that is not name, type or default."""

    group: str
    help: str
    parse: Callable[[str], Any] | None
    metavar: str
    aliases: tuple[str, ...]
    is_switch: bool
    """True if the flag has no value; its presence means true."""
    is_extension: bool
    """True if the flag is Naiad's own, i.e. the tool that Naiad imitates does not have it."""
    default_text: str
    """Description of the default, for a default that depends on something else."""


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
        default_text: str = "",
    ) -> Flag:
        return Flag(
            self.title, help, parse, metavar, aliases, is_switch, is_extension, default_text
        )


class Option(msgspec.Struct, frozen=True):
    name: str
    """The flag without its dashes."""
    field: str
    flag: Flag
    parse: Callable[[str], Any]
    """Parses the text of one occurrence of the flag."""
    is_repeated: bool
    default: Any
    metavar: str

    @property
    def variable(self) -> str:
        return f"NAIAD_{self.field.upper()}"

    @property
    def default_text(self) -> str:
        if self.flag.default_text:
            return self.flag.default_text
        if isinstance(self.default, bool):
            return "" if self.flag.is_switch else str(self.default).lower()
        if self.default in (None, (), ""):
            return ""
        return f"{self.default:.16g}" if isinstance(self.default, float) else str(self.default)


class OptionError(Exception):
    """A flag, an environment variable or an entry of the config file is invalid.

    The message is shown to the user.
    """


PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (boolean, "BOOL"),
    int: (integer, "INT"),
    float: (real, "NUMBER"),
    str: (string, "TEXT"),
}


def declared_options(struct: type[msgspec.Struct]) -> dict[str, Option]:
    """Returns the options of `struct` by name, in the order of declaration."""
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
