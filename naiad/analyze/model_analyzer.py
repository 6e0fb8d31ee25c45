"""Translates the command line of NVIDIA's model-analyzer to that of `naiad analyze`.

In:  argv without the command's name. Out: arguments for `naiad analyze`, and notes about flags that
     have no effect.
Rule: no flag is dropped silently. A flag is translated, or a note names it, or OptionError refuses
      it; a flag that model-analyzer does not have goes on to `naiad analyze`, which refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.analyze.config_file import WITHOUT_EFFECT
from naiad.analyze.settings import ProfileOptions, ReportOptions
from naiad.settings.option import OptionError

_SHORT = {"-v": "--verbose", "-q": "--quiet", "-m": "--mode"}
_SUBCOMMANDS: dict[str, type[msgspec.Struct]] = {
    "profile": ProfileOptions,
    "report": ReportOptions,
}
_PROGRESS = {"--verbose": "on", "--quiet": "off"}


class Translation(msgspec.Struct, frozen=True):
    arguments: list[str]
    notes: list[str]


def translate(arguments: Sequence[str]) -> Translation:
    """Raises OptionError."""
    left, notes = list(arguments), list[str]()
    options: list[str] = []
    while left and left[0].startswith("-"):
        flag, equals, value = left.pop(0).partition("=")
        flag = _SHORT.get(flag, flag)
        if flag == "--mode":
            _check_mode(value if equals else left.pop(0) if left else "")
        elif flag in _PROGRESS:
            options += ["--progress", _PROGRESS[flag]]
        else:
            return Translation([flag + equals + value, *left], notes)  # --help and mistakes
    if not left or left[0] not in _SUBCOMMANDS:
        return Translation(left, notes)
    subcommand = left.pop(0)
    if subcommand == "profile":
        left = options + left
    elif options:
        notes.append("--verbose and --quiet have no effect on report")
    ignored = WITHOUT_EFFECT - {
        field.name for field in msgspec.structs.fields(_SUBCOMMANDS[subcommand])
    }
    return Translation([subcommand, *_without(ignored, left, notes)], notes)


def _check_mode(mode: str) -> None:
    if mode != "online":
        raise OptionError(
            f"--mode: '{mode}' is not supported, expected online. For the highest throughput, use "
            "--objectives perf_throughput and no --latency-budget"
        )


def _without(ignored: frozenset[str], arguments: list[str], notes: list[str]) -> list[str]:
    """Removes flags that have no effect, with their values, and notes their names."""
    kept: list[str] = []
    is_removing = False
    for argument in arguments:
        if argument.startswith("-"):
            name = argument.removeprefix("--").partition("=")[0]
            is_removing = argument.startswith("--") and name.replace("-", "_") in ignored
            if is_removing:
                notes.append(f"--{name} has no effect here")
        if not is_removing:
            kept.append(argument)
    return kept
