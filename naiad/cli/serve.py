"""The command `serve`: a click command with one click option for each option of naiad.settings.

In:  argv. Out: the exit code of naiad.server.run, which receives the resolved `Settings`.
--help shows the options in Triton's groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import click
import msgspec

from naiad.settings.consistency import check_creation
from naiad.settings.effect import WITHOUT_EFFECT
from naiad.settings.option import Option, OptionError
from naiad.settings.resolve import OPTIONS, resolve
from naiad.tools.command_context import CONTEXT

SOURCES = (
    "Each option can also be set by an environment variable, e.g. NAIAD_HTTP_PORT for --http-port, "
    "or in the file given by --config-file. Separate several values in an environment variable "
    "with ';'. The command line overrides the environment, which overrides the file."
)


class ServeCommand(click.Command):
    def __init__(
        self,
        name: str,
        defaults: dict[str, Any],
        help: str,
        run: Callable[[dict[str, list[str]], dict[str, Any]], int] | None = None,
    ) -> None:
        """`defaults` maps option names to the defaults that differ from those of Settings. `run`
        receives the texts by option name, and the defaults; without it the command serves."""
        params: list[click.Parameter] = [_click_option(option) for option in OPTIONS.values()]
        super().__init__(name, CONTEXT | {"allow_extra_args": True}, self._run, params, help)
        self._defaults = defaults
        self._run_with = run or serve

    def _run(self, **values: Any) -> int:
        extra = click.get_current_context().args
        if extra:
            raise OptionError(f"Unexpected argument: {extra[0]}{_argument_hint(extra[0])}")
        return self._run_with(
            {name: _texts(values[option.field]) for name, option in OPTIONS.items()}, self._defaults
        )

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(
            ctx.command_path, "--model-repository DIR | --model CHECKPOINT [options]"
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in OPTIONS.values():
            groups.setdefault(option.flag.group, []).append(
                (_spelling(option), _help_text(option, self._defaults))
            )
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=34)
        formatter.write_paragraph()
        formatter.write_text(SOURCES)


def serve(texts: dict[str, list[str]], defaults: dict[str, Any]) -> int:
    resolved = resolve(texts, os.environ, defaults)
    check_creation(resolved.settings)
    # Workers inherit the environment, and no model needs the server's keys.
    os.environ.pop(OPTIONS["api-key"].variable, None)
    # These imports are slow, and --help and error messages do not need them.
    from naiad import log, server
    from naiad.settings.logging import log_settings

    log.configure(log_settings(resolved.settings, os.environ))
    for warning in resolved.warnings:
        log.warning(warning)
    if not resolved.settings.model:
        return server.run(resolved.settings)
    from naiad.tools.model_argument import checkpoint_repository

    with checkpoint_repository(resolved.settings.model) as path:
        repositories = (*resolved.settings.model_repository, str(path))
        return server.run(msgspec.structs.replace(resolved.settings, model_repository=repositories))


def expand_abbreviations(
    arguments: Iterable[str], spellings: Collection[str] | None = None
) -> list[str]:
    """Replaces abbreviated flags by full ones: `--http-p=1` becomes `--http-port=1`.

    tritonserver reads its flags with getopt, which accepts every unambiguous abbreviation.
    """
    known = spellings or [
        spelling for option in OPTIONS.values() for spelling in (option.name, *option.flag.aliases)
    ]
    expanded = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        start = name[2:] if name.startswith("--") else ""
        matches = [spelling for spelling in known if start and spelling.startswith(start)]
        expanded.append(f"--{matches[0]}{equals}{value}" if len(matches) == 1 else argument)
    return expanded


def _click_option(option: Option) -> click.Option:
    spellings = [option.field, f"--{option.name}", *(f"--{alias}" for alias in option.flag.aliases)]
    if option.flag.is_switch:
        return click.Option(spellings, is_flag=True)
    return click.Option(spellings, multiple=True, type=click.UNPROCESSED)


def _argument_hint(argument: str) -> str:
    if os.path.isfile(argument) or os.path.isfile(os.path.join(argument, "config.json")):
        return f"\nTo serve this checkpoint, write --model {argument}"
    if os.path.isdir(argument):
        return f"\nTo serve this model repository, write --model-repository {argument}"
    return ""


def _texts(value: Any) -> list[str]:
    if isinstance(value, bool):
        return ["true"] if value else []
    return list(value)


def _spelling(option: Option) -> str:
    names = ", ".join(f"--{name}" for name in (option.name, *option.flag.aliases))
    return f"{names} {option.metavar}".rstrip()


def _help_text(option: Option, defaults: dict[str, Any]) -> str:
    default = defaults.get(option.name) or option.default_text
    reason = WITHOUT_EFFECT.get(option.name)
    notes = [f"Default: {default}." if default else "", f"No effect{reason}." if reason else ""]
    return " ".join([option.flag.help, *filter(None, notes)])
