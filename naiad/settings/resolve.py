"""Combines command line, environment and config file into one `Settings`.

In:  for each source, the texts by option name. The command line overrides the environment, and the
     environment overrides the config file.
Out: `Settings` that are valid together, and warnings for the log. Invalid input raises OptionError
     with Triton's message.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from naiad.settings.consistency import check_consistency
from naiad.settings.deprecated import replace_deprecated
from naiad.settings.effect import warnings_about
from naiad.settings.option import Option, OptionError, declared_options
from naiad.settings.settings import Settings
from naiad.settings.value import BadValueError

OPTIONS: dict[str, Option] = declared_options(Settings)

TRITONSERVER_DEFAULTS = {
    "http-address": "0.0.0.0",
    "grpc-address": "0.0.0.0",
    "allow-file-override": "true",
}
"""The defaults of the `tritonserver` command that differ from those of `naiad serve`."""


class Resolved(msgspec.Struct, frozen=True):
    settings: Settings
    warnings: list[str]


def resolve(
    command_line: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
) -> Resolved:
    values: dict[str, Any] = {}
    for name, texts in command_line.items():
        if texts:
            values[name] = _parse(OPTIONS[name], texts, f"--{name}")
    for name, option in OPTIONS.items():
        if name not in values and option.variable in environ:
            text = environ[option.variable]
            values[name] = _parse(
                option, text.split(";") if option.is_repeated else [text], option.variable
            )
    if values.get("config-file"):
        values = read_config_file(values["config-file"]) | values
    values = {**(defaults or {}), **_environment_defaults(environ), **values}
    warnings = replace_deprecated(values)
    settings = Settings(**{OPTIONS[name].field: value for name, value in values.items()})
    settings = msgspec.structs.replace(
        settings, metrics_address=settings.metrics_address or settings.http_address
    )
    check_consistency(settings)
    changed = {name: value for name, value in values.items() if value != OPTIONS[name].default}
    return Resolved(settings, warnings + warnings_about(changed))


def read_config_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            entries = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise OptionError(f"cannot read the config file '{path}': {failure}") from None
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        name = find_option(key.replace("_", "-"), f"'{key}' in the config file '{path}'").name
        if name == "config-file":
            raise OptionError(
                f"'{key}' in the config file '{path}': a config file cannot name another one"
            )
        texts = [
            _toml_text(item, key, path) for item in (entry if isinstance(entry, list) else [entry])
        ]
        values[name] = _parse(OPTIONS[name], texts, f"{key} in {path}")
    return values


def find_option(name: str, place: str) -> Option:
    """Returns the option with this name or alias.

    Raises OptionError, which suggests the option with the most similar name. `place` describes
    where the name was found.
    """
    for option in OPTIONS.values():
        if name == option.name or name in option.flag.aliases:
            return option
    raise OptionError(f"unrecognized option {place}{suggestion(name)}")


def suggestion(name: str) -> str:
    # Imported only when there is an error: the import takes longer than parsing the options.
    from difflib import get_close_matches

    known = [
        spelling for option in OPTIONS.values() for spelling in (option.name, *option.flag.aliases)
    ]
    nearest = get_close_matches(name, known, 1, 0.5)
    return f", did you mean '--{nearest[0]}'?" if nearest else ""


def _parse(option: Option, texts: Sequence[str], place: str) -> Any:
    try:
        if option.is_repeated:
            return tuple(option.parse(text) for text in texts)
        return option.parse(texts[-1])
    except ValueError as failure:
        expected = f"\nExpected {failure.expected}." if isinstance(failure, BadValueError) else ""
        raise OptionError(f'Bad option: "{place}".\n{failure}{expected}') from None


def _toml_text(item: object, key: str, path: str) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str | int | float):
        return str(item)
    raise OptionError(
        f"'{key}' in the config file '{path}' must be a string, a number, a boolean or a list of"
        " these"
    )


def _environment_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the defaults that Vertex AI sets through environment variables of the container."""
    if environ.get("AIP_MODE") != "PREDICTION":
        return {}
    values: dict[str, Any] = {"allow-vertex-ai": True}
    if port := environ.get("AIP_HTTP_PORT"):
        values["vertex-ai-port"] = _parse(OPTIONS["vertex-ai-port"], [port], "AIP_HTTP_PORT")
    return values
