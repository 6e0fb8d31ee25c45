"""A struct of declared options as a click command, for the tools: the struct is the only place that
knows the flags.

In:  argv. Out: `run(values)`, by field and only those that were written; its exit code is returned.
     Aliases of one letter are short flags. Raises OptionError.
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
        return self._run_with(given_values(self.options, texts))

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Only what is written in `arguments`, by field. Raises OptionError,
        click.ClickException."""
        context = self.make_context(self.name, list(arguments), resilient_parsing=False)
        if context.args:
            raise OptionError(f"Unexpected argument: {context.args[0]}")
        return given_values(self.options, context.params)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, self._usage)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.options.values():
            groups.setdefault(option.flag.group, []).append((spelling(option), help_text(option)))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=38)


def given_values(options: dict[str, Option], texts: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in options.values():
        given = texts.get(option.field)
        if not given:
            continue
        if option.flag.is_switch:
            values[option.field] = True
            continue
        try:
            parsed = [option.parse(text) for text in given]
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
    """Nothing for an empty list or mapping, which a struct keeps as a factory."""
    return (
        option.flag.default_text if isinstance(option.default, _FACTORY) else option.default_text
    )


def help_text(option: Option) -> str:
    words = default_text(option)
    return f"{option.flag.help} Default: {words}." if words else option.flag.help
