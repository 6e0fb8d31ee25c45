"""The commands `naiad analyze profile` and `naiad analyze report`."""

from __future__ import annotations

from typing import Any

import click

from naiad.analyze.settings import ProfileOptions, ReportOptions
from naiad.tools.command_context import CONTEXT
from naiad.tools.options_command import OptionsCommand

PROFILE_HELP = """Measure configurations of models and find the best one.

Accepts model-analyzer's flags.

\b
  naiad analyze profile -m models --profile-models add_sub
  naiad analyze profile -m models --profile-models resnet --latency-budget 50 -e out
  naiad analyze profile -m models --profile-models resnet --run-config-search-mode optuna
  naiad analyze profile -f analyze.yaml
"""


def _profile(values: dict[str, Any]) -> int:
    from naiad.analyze.profile import run_profile

    return run_profile(values)


def _report(values: dict[str, Any]) -> int:
    from naiad.analyze.report import run_report

    return run_report(ReportOptions(**values))


@click.group("analyze", context_settings=CONTEXT, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Find a model's best configuration: measure with profile, write reports with report."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


command.add_command(
    OptionsCommand(
        "profile",
        ProfileOptions,
        _profile,
        PROFILE_HELP,
        "-m DIR --profile-models MODELS [options]",
    )
)
command.add_command(
    OptionsCommand(
        "report", ReportOptions, _report, "Write the reports of an earlier `naiad analyze profile`."
    )
)
