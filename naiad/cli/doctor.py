"""The command `naiad doctor`: checks the machine for what `naiad serve` needs.

In:  the options of `naiad serve`, from the command line, the environment and --config-file, so
     that `doctor` can replace `serve` in a command line that does not work.
Out: one line for each check. The exit code is 1 if there is a problem; warnings do not count.
"""

from __future__ import annotations

import os
from typing import Any

import click

from naiad.cli.serve import ServeCommand
from naiad.settings.resolve import resolve
from naiad.tools.doctor.examine import examine
from naiad.tools.doctor.finding import Level, render
from naiad.tools.doctor.host import Host

HELP = """Check this machine for what `naiad serve` needs.

Each line says OK, or what is wrong and the command that mends it. The exit code is 1 if there is a
problem. Accepts every option of `naiad serve`: put `doctor` in place of `serve`, and the ports,
folders and files of that command line are checked.
"""


class DoctorCommand(ServeCommand):
    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[options of naiad serve]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leaves out the options, which `naiad serve --help` lists."""


def doctor(texts: dict[str, list[str]], defaults: dict[str, Any]) -> int:
    resolved = resolve(texts, os.environ, defaults)
    findings = examine(resolved.settings, Host())
    click.echo(render(findings), nl=False)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    click.echo(f"\n{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    return 1 if problems else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


command = DoctorCommand("doctor", {}, HELP, doctor)
