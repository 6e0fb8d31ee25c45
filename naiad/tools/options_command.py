"""A click command whose flags are the declared options of a struct.

In:  argv.
Out: the exit code of `run(values)`. `values` maps field names to values and contains only the
     options that the command line sets. Raises OptionError.

An alias of one letter is a short flag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from naiad.settings.option import Option, OptionError, declared_options
from naiad.tools.command_context import CONTEXT


class _Sample(msgspec.Struct):
    entries: list[str] = []


_FACTORY: type = type(_Sample.__struct_defaults__[0])


class OptionsCommand(click.Command):
    def __init__(
        self,
        name: str,
        struct: type[msgspec.Struct],
        run: Callable[[dict[str, Any]], int],
        help: str,
        usage: str = "[options]",
    ) -> None:
        self.options = declared_options(struct)
        params: list[click.Parameter] = [_click_option(option) for option in self.options.values()]
        super().__init__(name, CONTEXT | {"allow_extra_args": True}, self._run, params, help)
        self._run_with = run
        self._usage = usage

    def _run(self, **texts: Any) -> int:
        extra = click.get_current_context().args
        if extra:
            raise OptionError(f"Unexpected argument: {extra[0]}")
        return self._run_with(explicit_values(self.options, texts))

    def spellings(self) -> list[str]:
        """The long flags, without dashes."""
        names = [
            name for option in self.options.values() for name in (option.name, *option.flag.aliases)
        ]
        return [name for name in names if len(name) > 1]

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Returns, by field name, the values that `arguments` sets. Raises OptionError or
        click.ClickException."""
        context = self.make_context(self.name, list(arguments), resilient_parsing=False)
        if context.args:
            raise OptionError(f"Unexpected argument: {context.args[0]}")
        return explicit_values(self.options, context.params)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, self._usage)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.options.values():
            groups.setdefault(option.flag.group, []).append((spelling(option), help_text(option)))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=38)


def explicit_values(options: dict[str, Option], texts: dict[str, Any]) -> dict[str, Any]:
    """Parses the options that were set and returns their values by field name."""
    values: dict[str, Any] = {}
    for option in options.values():
        option_texts = texts.get(option.field)
        if not option_texts:
            continue
        if option.flag.is_switch:
            values[option.field] = True
            continue
        try:
            parsed = [option.parse(text) for text in option_texts]
        except ValueError as error:
            raise OptionError(f"--{option.name}: {error}") from None
        values[option.field] = tuple(parsed) if option.is_repeated else parsed[-1]
    return values


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _click_option(option: Option) -> click.Option:
    spellings = [
        option.field,
        f"--{option.name}",
        *(_dashed(alias) for alias in option.flag.aliases),
    ]
    if option.flag.is_switch:
        return click.Option(spellings, is_flag=True)
    return click.Option(spellings, multiple=True, type=click.UNPROCESSED)


def spelling(option: Option) -> str:
    shorts = [_dashed(alias) for alias in option.flag.aliases if len(alias) == 1]
    longs = [_dashed(alias) for alias in option.flag.aliases if len(alias) > 1]
    return f"{', '.join([*shorts, f'--{option.name}', *longs])} {option.metavar}".rstrip()


def default_text(option: Option) -> str:
    """Returns the description of the default; empty for an empty list or mapping.

    A struct stores a mutable default as a factory, which has no useful text.
    """
    return option.flag.default_text if isinstance(option.default, _FACTORY) else option.default_text


def help_text(option: Option) -> str:
    default = default_text(option)
    return f"{option.flag.help} Default: {default}." if default else option.flag.help
